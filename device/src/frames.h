// Frames on a byte stream: a little-endian 32-bit length, then one MessagePack map of that many bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "result.h"

namespace hexgraft {

constexpr std::size_t kFrameLimit = std::size_t{64} << 20;  // bytes of one message
constexpr std::size_t kItemLimit = std::size_t{1} << 20;    // values in one message
constexpr std::size_t kDepthLimit = 8;                      // maps and arrays inside one another

using Bytes = std::vector<std::uint8_t>;

// Check a message without recursion or allocation in proportion to what it claims: one map, string keys, strings in
// UTF-8, no extension types, nothing after it, and the limits above. What passes is safe to hand to a parser.
Status check_message(const std::uint8_t* data, std::size_t size);

// True for well-formed UTF-8 without surrogates or overlong forms.
bool is_utf8(const std::uint8_t* data, std::size_t size);

enum class ReadOutcome { kFrame, kEnd, kTruncated, kTooLarge };

// Reads whole frames from a file descriptor. A frame above the limit is read past and reported, so that the stream
// stays in step.
class FrameReader {
 public:
  explicit FrameReader(int fd) : fd_(fd) {}
  ReadOutcome read(Bytes& message);
  // False if nothing has come after so many milliseconds.
  bool wait(int milliseconds) const;

 private:
  std::size_t fill(std::uint8_t* to, std::size_t count) const;
  int fd_;
};

class FrameWriter {
 public:
  explicit FrameWriter(int fd) : fd_(fd) {}
  // False once the other end is gone.
  bool write(const Bytes& message) const;

 private:
  int fd_;
};

}  // namespace hexgraft
