// The record of a run: lines of JSON, cut off at its limit, whole after every one.
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "record.h"

using namespace hexgraft;
using Json = nlohmann::json;

namespace {

std::vector<Json> lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<Json> found;
  for (std::string line; std::getline(file, line);) found.push_back(Json::parse(line));
  return found;
}

}  // namespace

int main() {
  char name[] = "/tmp/hexgraft-record-XXXXXX";
  CHECK(::mkstemp(name) >= 0);
  {
    Record record(name);
    CHECK(record.open());
    record.write("start", {{"ort", "bytes of no encoding: \xff"}});
    record.write("pass", {{"count", 3}});
    Record::end_now("hang-up");
    const std::vector<Json> found = lines(name);
    CHECK(found.size() == 4);
    CHECK(found[0]["event"] == "start" && found[0]["t"].is_number());
    CHECK(found[1]["event"] == "state" && found[1].contains("memory"));
    CHECK(found[2]["event"] == "pass" && found[2]["count"] == 3);
    CHECK(found[3]["event"] == "end" && found[3]["how"] == "hang-up");
  }
  ::unlink(name);
  Record small(name, 300);
  for (int i = 0; i < 50; ++i) small.write("pass", {{"count", i}});
  const std::vector<Json> found = lines(name);
  CHECK(found.size() < 10 && found.back()["event"] == "full");
  ::unlink(name);
  {
    Record shared(name, 20000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) shared.write("log", {{"line", "of a thread of the runtime"}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    int full = 0;
    for (const Json& line : lines(name)) full += line["event"] == "full" ? 1 : 0;
    CHECK(full == 1);
  }
  ::unlink(name);
  Record none("");
  CHECK(!none.open());
  none.write("pass", {});
  Record nowhere("/nowhere/at/all");
  CHECK(!nowhere.open());
  return REPORT();
}
