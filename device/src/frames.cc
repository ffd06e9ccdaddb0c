#include "frames.h"

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

namespace hexgraft {
namespace {

Error bad(const std::string& what) {
  return Error{"bad_frame", "the frame is not a valid message: " + what,
               "both ends must speak PROTOCOL.md exactly"};
}

// A position in a message that never runs past its end.
struct Cursor {
  const std::uint8_t* data;
  std::size_t size, offset = 0;

  std::size_t left() const { return size - offset; }
  bool skip(std::uint64_t count) {
    if (count > left()) return false;
    offset += static_cast<std::size_t>(count);
    return true;
  }
  // A big-endian number of 1, 2, 4 or 8 bytes.
  bool number(std::size_t bytes, std::uint64_t& value) {
    if (bytes > left()) return false;
    value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | data[offset++];
    return true;
  }
};

enum class Kind { kScalar, kString, kBytes, kArray, kMap, kInvalid };

struct Item {
  Kind kind = Kind::kInvalid;
  std::uint64_t length = 0;  // payload bytes, elements or pairs
};

// The head of the next value; kInvalid where it is cut short or of a type the protocol does not use.
Item next_item(Cursor& at) {
  std::uint64_t type = 0, length = 0;
  if (!at.number(1, type)) return {};
  if (type <= 0x7f || type >= 0xe0) return {Kind::kScalar, 0};
  if (type <= 0x8f) return {Kind::kMap, type & 0x0f};
  if (type <= 0x9f) return {Kind::kArray, type & 0x0f};
  if (type <= 0xbf) return {Kind::kString, type & 0x1f};
  switch (type) {
    case 0xc0:
    case 0xc2:
    case 0xc3: return {Kind::kScalar, 0};
    case 0xcc:
    case 0xd0: return {Kind::kScalar, 1};
    case 0xcd:
    case 0xd1: return {Kind::kScalar, 2};
    case 0xca:
    case 0xce:
    case 0xd2: return {Kind::kScalar, 4};
    case 0xcb:
    case 0xcf:
    case 0xd3: return {Kind::kScalar, 8};
    case 0xc4:
    case 0xc5:
    case 0xc6: return at.number(std::size_t{1} << (type - 0xc4), length) ? Item{Kind::kBytes, length} : Item{};
    case 0xd9:
    case 0xda:
    case 0xdb: return at.number(std::size_t{1} << (type - 0xd9), length) ? Item{Kind::kString, length} : Item{};
    case 0xdc:
    case 0xdd: return at.number(std::size_t{2} << (type - 0xdc), length) ? Item{Kind::kArray, length} : Item{};
    case 0xde:
    case 0xdf: return at.number(std::size_t{2} << (type - 0xde), length) ? Item{Kind::kMap, length} : Item{};
    default: return {};  // extension types and the byte MessagePack never uses
  }
}

struct Level {
  std::uint64_t left;  // values still to come
  bool map;
};

// Length of the UTF-8 sequence a byte begins, 0 where none does.
std::size_t sequence_length(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

}  // namespace

bool is_utf8(const std::uint8_t* data, std::size_t size) {
  for (std::size_t i = 0; i < size;) {
    const std::uint8_t lead = data[i];
    const std::size_t length = sequence_length(lead);
    if (length == 0 || length > size - i) return false;
    for (std::size_t j = 1; j < length; ++j) {
      if ((data[i + j] & 0xc0) != 0x80) return false;
    }
    if (length > 2) {
      const std::uint8_t second = data[i + 1];
      if (lead == 0xe0 && second < 0xa0) return false;  // overlong
      if (lead == 0xed && second > 0x9f) return false;  // surrogate
      if (lead == 0xf0 && second < 0x90) return false;  // overlong
      if (lead == 0xf4 && second > 0x8f) return false;  // beyond U+10FFFF
    }
    i += length;
  }
  return true;
}

Status check_message(const std::uint8_t* data, std::size_t size) {
  if (size > kFrameLimit) return bad("it is larger than the frame limit");
  Cursor at{data, size};
  std::array<Level, kDepthLimit> levels{};
  std::size_t depth = 0, items = 0;
  do {
    if (++items > kItemLimit) return bad("it holds too many values");
    const bool key = depth > 0 && levels[depth - 1].map && levels[depth - 1].left % 2 == 0;
    const Item item = next_item(at);
    if (item.kind == Kind::kInvalid) return bad("a value is cut short or of an unknown type");
    if (depth == 0 && item.kind != Kind::kMap) return bad("it is not a map");
    if (key && item.kind != Kind::kString) return bad("a key is not a string");
    if (depth > 0) --levels[depth - 1].left;
    if (item.kind == Kind::kArray || item.kind == Kind::kMap) {
      const bool map = item.kind == Kind::kMap;
      const std::uint64_t values = map ? item.length * 2 : item.length;
      if (values > at.left()) return bad("it claims more values than it has bytes");
      if (depth == kDepthLimit) return bad("it is nested too deeply");
      levels[depth++] = {values, map};
    } else {
      const std::uint8_t* payload = data + at.offset;
      if (!at.skip(item.length)) return bad("a value is cut short");
      if (item.kind == Kind::kString && !is_utf8(payload, static_cast<std::size_t>(item.length))) {
        return bad("a string is not UTF-8");
      }
    }
    while (depth > 0 && levels[depth - 1].left == 0) --depth;
  } while (depth > 0);
  if (at.left() != 0) return bad("bytes follow the map");
  return std::nullopt;
}

// Bytes read; fewer than asked only at the end of the stream.
std::size_t FrameReader::fill(std::uint8_t* to, std::size_t count) const {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::read(fd_, to + done, count - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

bool FrameReader::wait(int milliseconds) const {
  pollfd input{fd_, POLLIN, 0};
  return ::poll(&input, 1, milliseconds) != 0;
}

ReadOutcome FrameReader::read(Bytes& message) {
  std::uint8_t head[4];
  const std::size_t got = fill(head, sizeof head);
  if (got == 0) return ReadOutcome::kEnd;
  if (got < sizeof head) return ReadOutcome::kTruncated;
  const std::size_t size =
      head[0] | std::size_t{head[1]} << 8 | std::size_t{head[2]} << 16 | std::size_t{head[3]} << 24;
  // Grow with what arrives: a length alone must not make the runner allocate.
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  message.clear();
  for (std::size_t done = 0; done < size;) {
    const std::size_t block = std::min(kBlock, size - done);
    const std::size_t start = size > kFrameLimit ? 0 : done;
    message.resize(start + block);
    if (fill(message.data() + start, block) < block) return ReadOutcome::kTruncated;
    done += block;
  }
  return size > kFrameLimit ? ReadOutcome::kTooLarge : ReadOutcome::kFrame;
}

bool FrameWriter::write(const Bytes& message) const {
  std::uint8_t head[4];
  for (int i = 0; i < 4; ++i) head[i] = static_cast<std::uint8_t>(message.size() >> (8 * i));
  std::size_t done = 0;
  const std::size_t total = sizeof head + message.size();
  while (done < total) {
    iovec parts[2] = {{head, sizeof head}, {const_cast<std::uint8_t*>(message.data()), message.size()}};
    iovec* first = parts;
    int count = 2;
    std::size_t skip = done;
    if (skip >= sizeof head) {
      skip -= sizeof head;
      ++first;
      --count;
    }
    first->iov_base = static_cast<std::uint8_t*>(first->iov_base) + skip;
    first->iov_len -= skip;
    const ssize_t wrote = ::writev(fd_, first, count);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

}  // namespace hexgraft
