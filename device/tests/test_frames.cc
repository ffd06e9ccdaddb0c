// Frames on a stream, and messages that must be refused before a parser sees them.
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "check.h"
#include "frames.h"

using namespace hexgraft;
using Json = nlohmann::json;

namespace {

bool refused(const Bytes& message) { return check_message(message.data(), message.size()).has_value(); }

Bytes text(const std::string& content) {
  const std::string head{'\x81', '\xa1', 'a', static_cast<char>(0xa0 + content.size())};
  const std::string whole = head + content;
  return Bytes(whole.begin(), whole.end());
}

void good_messages() {
  const Json value{{"id", 1},
                   {"numbers", {-1, 0, 1e9, 1.5, -9000000000, 70000, 300, -300}},
                   {"none", nullptr},
                   {"yes", true},
                   {"text", "graft: \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb3"},
                   {"bytes", Json::binary({1, 2, 3})},
                   {"deep", {{{{{1}}}}}},
                   {"empty", Json::object()},
                   {"long", std::string(70000, 'x')},
                   {"many", std::vector<int>(70000, 3)}};
  CHECK(!refused(Json::to_msgpack(value)));
  CHECK(!refused({0x80}));
}

void every_cut_of_a_message_is_refused() {
  const Bytes whole = Json::to_msgpack(
      Json{{"id", 1}, {"ops", {{{"op", "forward"}, {"tokens", {1, 300, 70000}}}}}, {"b", Json::binary({1, 2})}});
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK(refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))));
  Bytes longer = whole;
  longer.push_back(0);
  CHECK(refused(longer));
}

void bad_messages() {
  CHECK(refused({}));
  CHECK(refused({0x01}));                                              // not a map
  CHECK(refused({0x81, 0x01, 0x01}));                                  // a key that is a number
  CHECK(refused({0x81, 0xa1, 'a', 0xc1}));                             // the byte MessagePack never uses
  CHECK(refused({0x81, 0xa1, 'a', 0xd4, 0x01, 0x00}));                 // an extension
  CHECK(refused({0x81, 0xa1, 'a', 0xdd, 0xff, 0xff, 0xff, 0xff}));     // 4 G elements
  CHECK(refused({0xdf, 0xff, 0xff, 0xff, 0xff}));                      // 4 G pairs
  CHECK(refused({0x81, 0xa1, 'a', 0xc6, 0xff, 0xff, 0xff, 0xff, 0}));  // 4 G bytes
  CHECK(refused({0x81, 0xa1, 'a', 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'}));
  Bytes deep{0x81, 0xa1, 'a'};
  deep.insert(deep.end(), 100000, 0x91);
  deep.push_back(0x01);
  CHECK(refused(deep));
  Bytes many{0x81, 0xa1, 'a', 0xdd, 0x00, 0x20, 0x00, 0x00};  // 2 M small numbers
  many.insert(many.end(), std::size_t{2} << 20, 0x00);
  CHECK(refused(many));
}

void utf8() {
  for (const char* good : {"", "a", "\xc3\xa9", "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(!refused(text(good)));
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff",
                          "a\xc3(", "\xf0\x80\x80\x80", "\xe2\x82"}) {
    CHECK(refused(text(bad)));
  }
}

void streams() {
  int ends[2];
  CHECK(::pipe(ends) == 0);
  const Bytes small{0x80}, large(300000, 7);
  const pid_t child = ::fork();
  if (child == 0) {
    const FrameWriter writer(ends[1]);
    const bool wrote = writer.write(small) && writer.write(large) && writer.write({});
    const Bytes huge(8, 0xff);  // a length above the limit: 4 G bytes that never come
    const bool sent = ::write(ends[1], huge.data(), huge.size()) == 8;
    ::_exit(wrote && sent ? 0 : 1);
  }
  ::close(ends[1]);
  FrameReader reader(ends[0]);
  Bytes message;
  CHECK(reader.read(message) == ReadOutcome::kFrame && message == small);
  CHECK(reader.read(message) == ReadOutcome::kFrame && message == large);
  CHECK(reader.read(message) == ReadOutcome::kFrame && message.empty());
  CHECK(reader.read(message) == ReadOutcome::kTruncated);
  CHECK(reader.read(message) == ReadOutcome::kEnd);
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

// A frame above the limit is read past, and the next one is understood.
void oversized_frame_keeps_step() {
  int ends[2];
  CHECK(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::size_t size = kFrameLimit + 5;
    std::uint8_t head[4];
    for (int i = 0; i < 4; ++i) head[i] = static_cast<std::uint8_t>(size >> (8 * i));
    bool good = ::write(ends[1], head, 4) == 4;
    const Bytes block(65536, 0);
    for (std::size_t sent = 0; sent < size && good;) {
      const ssize_t wrote = ::write(ends[1], block.data(), std::min(block.size(), size - sent));
      good = wrote > 0;
      sent += good ? static_cast<std::size_t>(wrote) : 0;
    }
    ::_exit(good && FrameWriter(ends[1]).write({0x80}) ? 0 : 1);
  }
  ::close(ends[1]);
  FrameReader reader(ends[0]);
  Bytes message;
  CHECK(reader.read(message) == ReadOutcome::kTooLarge);
  CHECK(reader.read(message) == ReadOutcome::kFrame && message == Bytes{0x80});
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

}  // namespace

int main() {
  good_messages();
  every_cut_of_a_message_is_refused();
  bad_messages();
  utf8();
  streams();
  oversized_frame_keeps_step();
  return REPORT();
}
