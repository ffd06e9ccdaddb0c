// The runner's protocol over a fake model: what tests of the protocol talk to where no runtime is wanted.
#include <unistd.h>

#include "fake_model.h"
#include "frames.h"
#include "session.h"

int main() {
  using namespace hexgraft;
  Session session(fake_load);
  FrameReader reader(STDIN_FILENO);
  const FrameWriter writer(STDOUT_FILENO);
  const Json hello{
      {"hello", "hexgraft"},        {"protocol", kProtocol}, {"version", "0.0.0"}, {"build", "fake"}, {"pid", 1},
      {"frame_limit", kFrameLimit}, {"providers", {"cpu"}}};
  writer.write(Json::to_msgpack(hello));
  Bytes message;
  while (!session.finished()) {
    const ReadOutcome outcome = reader.read(message);
    if (outcome == ReadOutcome::kEnd || outcome == ReadOutcome::kTruncated) return 0;
    const Error large{"too_large", "a frame passes the frame limit", "send less at a time"};
    if (!writer.write(outcome == ReadOutcome::kTooLarge ? Session::answer_error(large) : session.answer(message)))
      return 1;
  }
  return 0;
}
