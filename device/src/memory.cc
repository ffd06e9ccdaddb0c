#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace hexgraft {
namespace {

class PlainMemory : public Memory {
 public:
  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    return posix_memalign(&data, 64, bytes) == 0 ? data : nullptr;
  }
  void release(void* data) override { std::free(data); }
  std::string name() const override { return "plain"; }
};

}  // namespace

std::shared_ptr<Memory> plain_memory() { return std::make_shared<PlainMemory>(); }

Buffer::Buffer(std::shared_ptr<Memory> memory, std::size_t count) : memory_(std::move(memory)), count_(count) {
  if (count > std::numeric_limits<std::size_t>::max() / 8) throw std::bad_alloc();
  const std::size_t bytes = count == 0 ? 4 : count * 4;
  data_ = memory_->allocate(bytes);
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, bytes);
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(count_, other.count_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) memory_->release(data_);
}

}  // namespace hexgraft
