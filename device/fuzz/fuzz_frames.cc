// libFuzzer target: a stream of frames as a hostile host might send it, over the fake model.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "../tests/fake_model.h"
#include "session.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hexgraft;
  Session session(fake_load);
  while (size >= 2 && !session.finished()) {
    // Two bytes of length, so that the fuzzer finds frame borders easily.
    const std::size_t length = data[0] | static_cast<std::size_t>(data[1]) << 8;
    data += 2;
    size -= 2;
    const std::size_t taken = length < size ? length : size;
    const Bytes answer = session.answer(Bytes(data, data + taken));
    if (check_message(answer.data(), answer.size())) std::abort();  // whatever comes in, what goes out is valid
    data += taken;
    size -= taken;
  }
  return 0;
}
