#include "cache_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hexgraft {
namespace {

constexpr std::uint32_t kMagic = 0x4b475848;  // HXGK
constexpr std::uint32_t kFormat = 1;
constexpr std::uint32_t kRecord = 0x53574f52;  // ROWS
constexpr int kMostSlots = 64;                 // of a record
constexpr std::size_t kKeyBytes = 64;

struct Head {
  std::uint32_t magic = kMagic, format = kFormat;
  std::int32_t layers = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  char key[kKeyBytes] = {};
};

// Followed by the tokens, then keys and values layer by layer, then the checksum.
struct RecordHead {
  std::uint32_t magic = kRecord;
  std::int32_t start = 0, count = 0, zero = 0;
};

Head head_of(const Sizes& sizes, const std::string& key) {
  Head head;
  head.layers = sizes.layers;
  head.kv_heads = sizes.kv_heads;
  head.head_dim = sizes.head_dim;
  head.vocab = sizes.vocab;
  std::memcpy(head.key, key.data(), std::min(key.size(), kKeyBytes));
  return head;
}

std::size_t layer_floats(const Sizes& sizes, int count) {
  return static_cast<std::size_t>(sizes.kv_heads) * static_cast<std::size_t>(sizes.head_dim) *
         static_cast<std::size_t>(count);
}

std::size_t record_bytes(const Sizes& sizes, int count) {
  return sizeof(RecordHead) + static_cast<std::size_t>(count) * sizeof(std::int32_t) +
         static_cast<std::size_t>(sizes.layers) * 2 * layer_floats(sizes, count) * sizeof(float) +
         sizeof(std::uint64_t);
}

// FNV-1a over words of four bytes, of which a record is made.
std::uint64_t checksum(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, data + i, sizeof word);
    sum = (sum ^ word) * 0x100000001b3U;
  }
  return sum;
}

bool write_at(int fd, const void* data, std::size_t bytes, std::int64_t at) {
  const auto* from = static_cast<const std::uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::pwrite(fd, from, bytes, at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    from += wrote;
    at += wrote;
    bytes -= static_cast<std::size_t>(wrote);
  }
  return true;
}

bool read_at(int fd, void* data, std::size_t bytes, std::int64_t at) {
  auto* to = static_cast<std::uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, bytes, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

CacheFile::CacheFile(CacheFile&& other) noexcept { *this = std::move(other); }

CacheFile& CacheFile::operator=(CacheFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::move(other.path_);
  key_ = std::move(other.key_);
  fd_ = std::exchange(other.fd_, -1);
  count_ = std::exchange(other.count_, 0);
  end_ = std::exchange(other.end_, 0);
  return *this;
}

CacheFile::~CacheFile() { close(); }

void CacheFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  count_ = 0;
  end_ = 0;
}

void CacheFile::remove() {
  close();
  ::unlink(path_.c_str());
}

bool CacheFile::begin(const Sizes& sizes) {
  close();
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd_ < 0) return false;
  const Head head = head_of(sizes, key_);
  end_ = sizeof head;
  return write_at(fd_, &head, sizeof head, 0);
}

std::optional<std::string> CacheFile::keep(const Model& model, int start, const std::vector<std::int32_t>& tokens) {
  bool good = start != 0 || begin(model.sizes());
  for (std::size_t done = 0; good && done < tokens.size(); done += kMostSlots) {
    const int count = static_cast<int>(std::min<std::size_t>(kMostSlots, tokens.size() - done));
    good = append(model, start + static_cast<int>(done), tokens.data() + done, count);
  }
  if (good) return std::nullopt;
  const std::string reason = std::strerror(errno);
  remove();
  return path_ + " cannot be written: " + reason;
}

bool CacheFile::append(const Model& model, int start, const std::int32_t* tokens, int count) {
  const Sizes& sizes = model.sizes();
  const std::size_t floats = layer_floats(sizes, count), bytes = record_bytes(sizes, count);
  std::vector<std::uint8_t> record(bytes);
  std::uint8_t* to = record.data();
  const auto put = [&](const void* data, std::size_t size) {
    std::memcpy(to, data, size);
    to += size;
  };
  RecordHead head;
  head.start = start;
  head.count = count;
  put(&head, sizeof head);
  put(tokens, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  std::vector<float> keys(floats), values(floats);
  for (int layer = 0; layer < sizes.layers; ++layer) {
    if (model.save(layer, start, count, keys.data(), values.data())) {
      errno = EINVAL;
      return false;
    }
    put(keys.data(), floats * sizeof(float));
    put(values.data(), floats * sizeof(float));
  }
  const std::uint64_t sum = checksum(record.data(), bytes - sizeof(std::uint64_t));
  put(&sum, sizeof sum);
  if (!write_at(fd_, record.data(), bytes, end_)) return false;
  end_ += static_cast<std::int64_t>(bytes);
  count_ = start + count;
  return true;
}

int CacheFile::recall(Model& model, const std::vector<std::int32_t>& text) {
  close();
  fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) return 0;
  Head found;
  const Head wanted = head_of(model.sizes(), key_);
  if (!read_at(fd_, &found, sizeof found, 0) || std::memcmp(&found, &wanted, sizeof found) != 0) {
    close();
    return 0;
  }
  std::int64_t at = sizeof found;
  while (take(model, text, at)) {
  }
  end_ = at;
  if (::ftruncate(fd_, end_) != 0) close();
  return count_;
}

bool CacheFile::take(Model& model, const std::vector<std::int32_t>& text, std::int64_t& at) {
  const Sizes& sizes = model.sizes();
  RecordHead head;
  if (!read_at(fd_, &head, sizeof head, at) || head.magic != kRecord || head.start != count_ || head.count < 1 ||
      head.count > kMostSlots || static_cast<std::size_t>(head.start + head.count) > text.size()) {
    return false;
  }
  const std::size_t bytes = record_bytes(sizes, head.count), floats = layer_floats(sizes, head.count);
  std::vector<std::uint8_t> record(bytes);
  std::uint64_t sum = 0;
  if (!read_at(fd_, record.data(), bytes, at)) return false;
  std::memcpy(&sum, record.data() + bytes - sizeof sum, sizeof sum);
  const std::size_t token_bytes = static_cast<std::size_t>(head.count) * sizeof(std::int32_t);
  const std::uint8_t* from = record.data() + sizeof head;
  if (sum != checksum(record.data(), bytes - sizeof sum) ||
      std::memcmp(from, text.data() + head.start, token_bytes) != 0) {
    return false;
  }
  from += token_bytes;
  std::vector<float> keys(floats), values(floats);
  for (int layer = 0; layer < sizes.layers; ++layer) {
    std::memcpy(keys.data(), from, floats * sizeof(float));
    std::memcpy(values.data(), from + floats * sizeof(float), floats * sizeof(float));
    from += 2 * floats * sizeof(float);
    if (model.restore(layer, head.start, head.count, keys.data(), values.data())) return false;
  }
  at += static_cast<std::int64_t>(bytes);
  count_ += head.count;
  return true;
}

}  // namespace hexgraft
