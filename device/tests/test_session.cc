// The verbs over a fake model: what they answer, what they refuse, and that refusals harm nothing. Ends with the
// golden conversation that the host's tests hold against their own side.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "check.h"
#include "fake_model.h"
#include "session.h"

using namespace hexgraft;

namespace {

Json ask(Session& session, const Json& operations) {
  return Json::from_msgpack(session.answer(Json::to_msgpack(Json{{"id", 7}, {"ops", operations}})));
}

// The one operation's result; null where it failed, with the code in `code`.
Json one(Session& session, const Json& operation, std::string* code = nullptr) {
  const Json answer = ask(session, Json::array({operation}));
  CHECK(answer["id"] == 7);
  if (code != nullptr) *code = answer.contains("error") ? answer["error"]["code"].get<std::string>() : "";
  return answer.contains("error") ? Json() : answer["results"][0];
}

std::string code(Session& session, const Json& operation) {
  std::string value;
  one(session, operation, &value);
  return value;
}

Json loaded(Session& session, const std::string& bundle = "fake") {
  return one(session,
             {{"op", "load"}, {"model", "target"}, {"role", "target"}, {"bundle", bundle}, {"provider", "cpu"}});
}

const Json kForward{
    {"op", "forward"}, {"model", "target"}, {"tokens", {5, 6, 7}}, {"positions", {0, 1, 1}}, {"prefix", 0}};

Json changed(Json operation, const std::string& name, const Json& value) {
  operation[name] = value;
  return operation;
}

void a_round() {
  Session session(fake_load);
  CHECK(code(session, kForward) == "not_loaded");
  const Json facts = loaded(session);
  CHECK(facts["vocab"] == 300 && facts["widths"].is_null() && facts["memory"] == "plain");
  CHECK(code(session, {{"op", "rows"}, {"model", "target"}, {"want", "topk"}, {"k", 1}, {"log_sum", false}}) ==
        "no_pass");
  const Json answer = ask(
      session, Json::array({kForward,
                            {{"op", "rows"}, {"model", "target"}, {"want", "topk"}, {"k", 2}, {"log_sum", true}},
                            {{"op", "rows"}, {"model", "target"}, {"want", "hidden"}, {"rows", {2, 0}}},
                            {{"op", "store"}, {"model", "target"}, {"rows", {0, 2}}, {"slots", {0, 1}}},
                            {{"op", "save"}, {"model", "target"}, {"layer", 1}, {"start", 0}, {"count", 2}}}));
  CHECK(!answer.contains("error") && answer["results"].size() == 5);
  CHECK(answer["results"][0]["count"] == 3 && answer["results"][0]["width"] == 3);
  CHECK(answer["results"][1]["ids"].get_binary().size() == 3 * 2 * 4);
  CHECK(answer["results"][1]["log_sum"].get_binary().size() == 3 * 8);
  float states[8];
  CHECK(answer["results"][2]["hidden"].get_binary().size() == sizeof states);
  std::memcpy(states, answer["results"][2]["hidden"].get_binary().data(), sizeof states);
  CHECK(states[0] == 7 && states[3] == 10 && states[4] == 5);  // tokens 7 and 5
  float keys[16];
  std::memcpy(keys, answer["results"][4]["keys"].get_binary().data(), sizeof keys);
  CHECK(keys[0] == 510 && keys[1] == 710 && keys[2] == 511);  // tokens 5 and 7, layer 1
}

void refused_fields() {
  Session session(fake_load);
  loaded(session);
  for (const Json& tokens : {Json::array({-1, 2, 3}), Json::array({1, 2, 300}), Json::array({1, 2.0, 3}),
                             Json::array(), Json("abc"), Json(nullptr), Json::array({1, 2, 18446744073709551615U}),
                             Json(std::vector<int>(33, 1)), Json::array({1, 2, "3"})}) {
    CHECK(code(session, changed(kForward, "tokens", tokens)) == "bad_field");
  }
  for (const Json& positions : {Json::array({0, 1}), Json::array({0, 1, 600}), Json::array({0, 1, -1})}) {
    CHECK(code(session, changed(kForward, "positions", positions)) == "bad_field");
  }
  for (const Json& prefix :
       {Json(-1), Json(601), Json(1.5), Json(9223372036854775807), Json(18446744073709551615U)}) {
    CHECK(code(session, changed(kForward, "prefix", prefix)) == "bad_field");
  }
  CHECK(code(session, changed(kForward, "visible", Json::binary({1, 1}))) == "bad_field");
  CHECK(code(session, changed(kForward, "visible", Json::binary({1, 1, 9}))) == "bad_field");  // a bit beyond row 2
  CHECK(code(session, changed(kForward, "slots", {1, 2})) == "bad_field");                     // no `seen`
  CHECK(code(session, changed(changed(kForward, "slots", {1, 1}), "seen", Json::binary({0, 0, 0}))) == "bad_field");
  CHECK(code(session, changed(changed(kForward, "slots", {1, 600}), "seen", Json::binary({0, 0, 0}))) ==
        "bad_field");
  CHECK(code(session, changed(changed(kForward, "slots", {1, 2}), "seen", Json::binary({0, 0, 4}))) == "bad_field");
  CHECK(code(session, changed(kForward, "extra", 1)) == "bad_field");
  CHECK(code(session, {{"op", "fly"}}) == "bad_op");
  CHECK(code(session, {{"op", 3}}) == "bad_op");
  CHECK(code(session, Json(3)) == "bad_op");
  CHECK(code(session,
             {{"op", "load"}, {"model", "target"}, {"role", "other"}, {"bundle", "b"}, {"provider", "cpu"}}) ==
        "bad_field");
  CHECK(code(session,
             {{"op", "load"}, {"model", "draft"}, {"role", "draft"}, {"bundle", "missing"}, {"provider", "cpu"}}) ==
        "no_bundle");
  CHECK(code(session, {{"op", "load"},
                       {"model", "draft"},
                       {"role", "draft"},
                       {"bundle", std::string("a\0b", 3)},
                       {"provider", "cpu"}}) == "bad_field");
  CHECK(code(session, {{"op", "load"}, {"model", ""}, {"role", "draft"}, {"bundle", "b"}, {"provider", "cpu"}}) ==
        "bad_field");
  CHECK(code(session, kForward).empty());  // none of it harmed the model
}

void refused_slots_and_rows() {
  Session session(fake_load);
  loaded(session);
  const auto store = [&](const Json& rows, const Json& slots) {
    return code(session, {{"op", "store"}, {"model", "target"}, {"rows", rows}, {"slots", slots}});
  };
  const auto move = [&](const Json& source, const Json& target) {
    return code(session, {{"op", "move"}, {"model", "target"}, {"source", source}, {"target", target}});
  };
  CHECK(store({0}, {0}) == "no_pass");
  CHECK(code(session, kForward).empty());
  CHECK(store({3}, {0}) == "bad_field");
  CHECK(store({0, 1}, {4, 4}) == "bad_field");
  CHECK(store({0, 1}, {4}) == "bad_field");
  CHECK(store({0}, {600}) == "bad_field");
  CHECK(store({0, 0}, {598, 599}).empty());  // grows to the context
  CHECK(store(Json::array(), Json::array()).empty());
  CHECK(move({3, 2}, {0, 1}) == "bad_field");
  CHECK(move({3, 4}, {1, 1}) == "bad_field");
  CHECK(move({3}, {4}) == "bad_field");
  CHECK(move({3, 599}, {3, 4}).empty());
  CHECK(code(session, {{"op", "reset"}, {"model", "target"}}).empty());
  CHECK(move({300}, {4}) == "bad_field");  // back to the first 256 slots
  CHECK(store({0}, {0}) == "no_pass");
  std::vector<std::uint8_t> numbers(8 * 4);
  std::memcpy(numbers.data() + 4, "\0\0\xc0\x7f", 4);
  const Json damaged{{"op", "restore"},
                     {"model", "target"},
                     {"layer", 0},
                     {"start", 0},
                     {"count", 1},
                     {"keys", Json::binary(numbers)},
                     {"values", Json::binary(std::vector<std::uint8_t>(32))}};
  CHECK(code(session, damaged) == "bad_field");
  CHECK(code(session, changed(damaged, "keys", Json::binary(std::vector<std::uint8_t>(31)))) == "bad_field");
  CHECK(code(session, changed(damaged, "keys", Json::binary(std::vector<std::uint8_t>(32)))).empty());
  CHECK(code(session, {{"op", "save"}, {"model", "target"}, {"layer", 2}, {"start", 0}, {"count", 1}}) ==
        "bad_field");
  CHECK(code(session, {{"op", "save"}, {"model", "target"}, {"layer", 0}, {"start", 255}, {"count", 2}}) ==
        "bad_field");
}

void many_models() {
  Session session(fake_load);
  for (int i = 0; i < 17; ++i) {
    const Json load{
        {"op", "load"}, {"model", std::to_string(i)}, {"role", "draft"}, {"bundle", "b"}, {"provider", "cpu"}};
    CHECK(code(session, load) == (i < 16 ? "" : "bad_field"));
  }
  CHECK(code(session, {{"op", "unload"}, {"model", "3"}}).empty());
  CHECK(code(session, changed(kForward, "model", "3")) == "not_loaded");
  CHECK(code(session, changed(kForward, "model", "4")).empty());
}

void lists_stop_at_the_first_failure() {
  Session session(fake_load);
  loaded(session);
  Json answer = ask(session, Json::array({kForward, changed(kForward, "prefix", -1), {{"op", "bye"}}}));
  CHECK(answer["results"].size() == 1 && answer["error"]["op"] == 1 && !session.finished());
  // A failed pass leaves no rows of the one before.
  CHECK(code(session, kForward).empty());
  CHECK(code(session, changed(kForward, "tokens", {1, 2, 299})).empty());
  CHECK(code(session, {{"op", "rows"}, {"model", "target"}, {"want", "topk"}, {"k", 1}, {"log_sum", false}}) ==
        "not_finite");
  CHECK(code(session,
             {{"op", "rows"}, {"model", "target"}, {"want", "topk"}, {"k", 1}, {"rows", {1}}, {"log_sum", false}})
            .empty());
  answer = ask(session, Json::array({{{"op", "bye"}}, kForward}));
  CHECK(answer["error"]["code"] == "bad_op" && session.finished());
}

// Where the graph hides what stands behind a row, nobody may ask to see it.
void rows_that_look_ahead() {
  for (const char* bundle : {"fake", "joined"}) {
    Session session(fake_load);
    loaded(session, bundle);
    CHECK(code(session, changed(kForward, "visible", Json::binary({1, 3, 5}))).empty());
    const std::string refusal = bundle == std::string("joined") ? "bad_field" : "";
    CHECK(code(session, changed(kForward, "visible", Json::binary({1, 6, 5}))) == refusal);
    CHECK(code(session, changed(kForward, "visible", Json::binary({4, 3, 5}))) == refusal);
    const Json ninth =
        Json::binary({0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});  // row 4 sees row 8
    const Json nine = changed(kForward, "tokens", std::vector<int>(10, 1));
    CHECK(code(session, changed(changed(nine, "positions", std::vector<int>(10, 1)), "visible", ninth)) == refusal);
    CHECK(code(session, kForward).empty());
  }
}

void answers_that_would_not_fit() {
  Session session(fake_load);
  loaded(session);
  CHECK(code(session, kForward).empty());
  Json operations = Json::array();
  for (int i = 0; i < 4096; ++i) {
    operations.push_back({{"op", "rows"},
                          {"model", "target"},
                          {"want", "topk"},
                          {"k", 300},
                          {"rows", std::vector<int>(64, 1)},
                          {"log_sum", false}});
  }
  const Json answer = ask(session, operations);
  CHECK(answer["error"]["code"] == "too_large" && answer["results"].size() < 500);
}

void whole_requests() {
  Session session(fake_load);
  const auto refused = [&](const Json& request) {
    const Json answer = Json::from_msgpack(session.answer(Json::to_msgpack(request)));
    return answer.contains("error") && answer["error"]["op"] == -1;
  };
  CHECK(refused(Json::object()));
  CHECK(refused({{"id", 1}}));
  CHECK(refused({{"id", 0}, {"ops", Json::array()}}));
  CHECK(refused({{"id", -5}, {"ops", Json::array()}}));
  CHECK(refused({{"id", 1}, {"ops", 3}}));
  CHECK(refused({{"id", 1}, {"ops", Json::array()}, {"more", 1}}));
  CHECK(!refused({{"id", 1}, {"ops", Json::array()}}));
  const Bytes rubbish{0xff, 0x00};
  CHECK(Json::from_msgpack(session.answer(rubbish))["error"]["code"] == "bad_frame");
}

Bytes read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  CHECK(stream.good());
  return Bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
}

// What depends on the machine or the moment is left out of the comparison.
Json comparable(Json answer) {
  for (Json& result : answer["results"]) {
    result.erase("affinity");
    result.erase("total");
  }
  return answer;
}

void cache_files() {
  const Json keep{{"op", "keep"}, {"model", "target"}, {"file", "target"},
                  {"key", "k"},   {"start", 0},        {"tokens", {5, 6, 7}}};
  const Json recall{
      {"op", "recall"}, {"model", "target"}, {"file", "target"}, {"key", "k"}, {"tokens", {5, 6, 7, 8}}};
  Session none(fake_load);
  loaded(none);
  CHECK(code(none, keep) == "no_folder" && code(none, recall) == "no_folder");

  char name[] = "/tmp/hexgraft-session-XXXXXX";
  const std::string folder = ::mkdtemp(name), path = folder + "/target";
  std::vector<std::string> events;
  const Observer observe = [&](const char* event, const Json& fields) {
    events.push_back(event);
    CHECK(!fields.dump().empty());
  };
  const Json store{{"op", "store"}, {"model", "target"}, {"rows", {0, 1, 2}}, {"slots", {0, 1, 2}}};
  {
    Session first(fake_load, folder, observe);
    loaded(first);
    const Json answer = ask(first, Json::array({kForward, store, keep}));
    CHECK(answer["results"][2]["count"] == 3);
    CHECK(code(first, changed(keep, "start", 2)) == "bad_field");
    CHECK(code(first, changed(keep, "file", "../target")) == "bad_field");
    CHECK(code(first, changed(keep, "file", "")) == "bad_field");
    CHECK(code(first, changed(keep, "key", std::string(65, 'k'))) == "bad_field");
    CHECK(code(first, changed(keep, "tokens", Json::array({300}))) == "bad_field");
    CHECK(code(first, changed(changed(keep, "start", 3), "tokens", std::vector<int>(254, 1))) == "bad_field");
    const Json lost = one(first, changed(changed(keep, "file", "none"), "key", "other"));
    CHECK(lost["count"] == 3);
  }
  // No bye: as if the link had gone. Another runner finds the file.
  Session second(fake_load, folder, observe);
  loaded(second);
  CHECK(one(second, changed(recall, "file", "missing"))["count"] == 0);
  CHECK(one(second, changed(recall, "key", "other"))["count"] == 0);
  CHECK(one(second, recall)["count"] == 3);
  const Json saved{{"op", "save"}, {"model", "target"}, {"layer", 1}, {"start", 0}, {"count", 3}};
  Session third(fake_load);
  loaded(third);
  CHECK(one(second, saved) == ask(third, Json::array({kForward, store, saved}))["results"][2]);
  CHECK(one(second, {{"op", "unload"}, {"model", "target"}}) == Json::object());
  CHECK(::access(path.c_str(), F_OK) != 0);
  CHECK(::access((folder + "/none").c_str(), F_OK) == 0);
  ::unlink((folder + "/none").c_str());
  const std::vector<std::string> seen{"load",  "pass",  "error", "error",  "error",  "error",
                                      "error", "error", "load",  "recall", "recall", "recall"};
  CHECK(events == seen);
  ::rmdir(folder.c_str());
}

void golden_conversation(const Loader& load) {
  const std::string folder = std::string(GOLDEN_FOLDER) + "/conversation";
  Session session(load);
  int steps = 0;
  for (;; ++steps) {
    const std::string step = folder + "/" + (steps < 10 ? "0" : "") + std::to_string(steps);
    if (!std::ifstream(step + "-request.bin").good()) break;
    const Bytes request = read_file(step + "-request.bin"), expected = read_file(step + "-answer.bin");
    const Json want = Json::from_msgpack(expected), got = Json::from_msgpack(session.answer(request));
    CHECK(comparable(want) == comparable(got));
    CHECK(Json::to_msgpack(want) == expected);
  }
  CHECK(steps > 5 && session.finished());
}

void golden_refusals() {
  const std::string folder = std::string(GOLDEN_FOLDER) + "/refused";
  Session session(fake_load);
  int files = 0;
  DIR* entries = opendir(folder.c_str());
  CHECK(entries != nullptr);
  while (const dirent* entry = entries == nullptr ? nullptr : readdir(entries)) {
    if (std::string(entry->d_name).find(".bin") == std::string::npos) continue;
    ++files;
    const Json answer = Json::from_msgpack(session.answer(read_file(folder + "/" + entry->d_name)));
    CHECK(answer["error"]["op"] == -1);
  }
  if (entries != nullptr) closedir(entries);
  CHECK(files > 5);
}

}  // namespace

int main() {
  a_round();
  refused_fields();
  refused_slots_and_rows();
  many_models();
  lists_stop_at_the_first_failure();
  rows_that_look_ahead();
  answers_that_would_not_fit();
  whole_requests();
  cache_files();
  golden_conversation(fake_load);
  // The layout of the cache shows in no answer.
  golden_conversation([](LoadRequest request) {
    if (request.bundle != "missing") request.bundle = "joined";
    return fake_load(request);
  });
  golden_refusals();
  return REPORT();
}
