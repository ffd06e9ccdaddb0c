// Where tensors live: plain memory, or memory a provider shares with its accelerator.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace hexgraft {

// A source of aligned memory. `allocate` returns null when there is none left.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) = 0;
  virtual std::string name() const = 0;
};

// 64-byte aligned memory of this process.
std::shared_ptr<Memory> plain_memory();

// A block of zeroed 4-byte numbers. Throws std::bad_alloc, which the session answers with `out_of_memory`.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<Memory> memory, std::size_t count);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  float* floats() { return static_cast<float*>(data_); }
  const float* floats() const { return static_cast<const float*>(data_); }
  void* data() { return data_; }
  const void* data() const { return data_; }
  std::size_t count() const { return count_; }

 private:
  std::shared_ptr<Memory> memory_;
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace hexgraft
