// Cache files: what was kept comes back bit for bit, and whatever is cut, altered or foreign counts for nothing.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache_file.h"
#include "check.h"
#include "fake_model.h"

using namespace hexgraft;

namespace {

using Tokens = std::vector<std::int32_t>;

std::string folder() {
  static char name[] = "/tmp/hexgraft-caches-XXXXXX";
  static const char* made = ::mkdtemp(name);
  return made;
}

// A model whose first slots hold the text, read 32 tokens at a time.
std::unique_ptr<Model> filled(const Tokens& text) {
  std::unique_ptr<Model> model = fake_model(fake_sizes(), kCacheStep);
  for (std::size_t start = 0; start < text.size(); start += 32) {
    const std::size_t end = std::min(text.size(), start + 32);
    Tokens places, rows;
    for (std::size_t i = start; i < end; ++i) {
      places.push_back(static_cast<std::int32_t>(i));
      rows.push_back(static_cast<std::int32_t>(i - start));
    }
    Visibility visible;
    visible.prefix = static_cast<std::int32_t>(start);
    const Tokens part(text.begin() + static_cast<std::ptrdiff_t>(start),
                      text.begin() + static_cast<std::ptrdiff_t>(end));
    CHECK(static_cast<bool>(model->forward(part, places, visible)));
    CHECK(!model->store(rows, places));
  }
  return model;
}

std::vector<float> slots(const Model& model, int count) {
  const Sizes& sizes = model.sizes();
  const auto numbers = static_cast<std::size_t>(sizes.kv_heads * sizes.head_dim * count);
  std::vector<float> all;
  for (int layer = 0; layer < sizes.layers; ++layer) {
    std::vector<float> keys(numbers), values(numbers);
    CHECK(!model.save(layer, 0, count, keys.data(), values.data()));
    all.insert(all.end(), keys.begin(), keys.end());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

Tokens text(int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i * 7 % 290);
  return tokens;
}

std::string bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void what_is_kept_comes_back() {
  const Tokens all = text(300);
  const std::unique_ptr<Model> model = filled(all);
  CacheFile file(folder() + "/target", "a key");
  CHECK(!file.keep(*model, 0, Tokens(all.begin(), all.begin() + 200)));
  CHECK(!file.keep(*model, 200, Tokens(all.begin() + 200, all.begin() + 201)));
  CHECK(!file.keep(*model, 201, Tokens(all.begin() + 201, all.end())));
  CHECK(file.count() == 300);

  CacheFile again(folder() + "/target", "a key");
  const std::unique_ptr<Model> fresh = fake_model(fake_sizes(), kCacheStep);
  CHECK(again.recall(*fresh, all) == 300);
  CHECK(slots(*fresh, 300) == slots(*model, 300));
  Tokens longer = all;
  longer.push_back(5);
  CHECK(again.recall(*fresh, longer) == 300);
  // It goes on where it stands.
  const std::unique_ptr<Model> more = filled(longer);
  CHECK(!again.keep(*more, 300, {5}));
  CHECK(again.recall(*fresh, longer) == 301);
  CHECK(slots(*fresh, 301) == slots(*more, 301));
  // Beginning anew leaves nothing of before.
  CHECK(!again.keep(*more, 0, {longer[0]}));
  CHECK(again.recall(*fresh, longer) == 1);
  again.remove();
  CHECK(again.recall(*fresh, longer) == 0);
  CHECK(bytes(folder() + "/target").empty());
}

void only_the_same_text_is_taken() {
  const Tokens all = text(130);
  const std::unique_ptr<Model> model = filled(all);
  CacheFile file(folder() + "/target", "a key");
  CHECK(!file.keep(*model, 0, all));
  const std::unique_ptr<Model> fresh = fake_model(fake_sizes(), kCacheStep);
  Tokens other = all;
  other[100] = 299;
  CHECK(CacheFile(folder() + "/target", "another key").recall(*fresh, all) == 0);
  CHECK(CacheFile(folder() + "/target", "a key").recall(*fresh, Tokens(all.begin(), all.begin() + 129)) == 128);
  CHECK(CacheFile(folder() + "/target", "a key").recall(*fresh, other) == 64);
  // The cut is in the file: what follows is gone.
  CHECK(CacheFile(folder() + "/target", "a key").recall(*fresh, all) == 64);
  Sizes sizes = fake_sizes();
  sizes.head_dim = 8;
  const std::unique_ptr<Model> larger = fake_model(sizes, kCacheStep);
  CHECK(CacheFile(folder() + "/target", "a key").recall(*larger, all) == 0);
}

void damage_is_noticed() {
  const Tokens all = text(192);
  const std::unique_ptr<Model> model = filled(all);
  const std::string path = folder() + "/target";
  CacheFile file(path, "a key");
  CHECK(!file.keep(*model, 0, all));
  const std::string whole = bytes(path);
  const std::size_t head = 88, record = (whole.size() - head) / 3;
  CHECK(head + 3 * record == whole.size());
  const std::unique_ptr<Model> fresh = fake_model(fake_sizes(), kCacheStep);
  for (std::size_t cut = 0; cut <= whole.size(); cut += 397) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, cut);
    const int expected = cut < head ? 0 : static_cast<int>((cut - head) / record) * 64;
    CHECK(CacheFile(path, "a key").recall(*fresh, all) == expected);
  }
  for (std::size_t at = 0; at < whole.size(); at += 311) {
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    std::ofstream(path, std::ios::binary) << altered;
    const int expected = at < head ? 0 : static_cast<int>((at - head) / record) * 64;
    CHECK(CacheFile(path, "a key").recall(*fresh, all) == expected);
  }
}

void a_file_that_cannot_be_written() {
  const Tokens all = text(10);
  const std::unique_ptr<Model> model = filled(all);
  CacheFile nowhere(folder() + "/none/target", "a key");
  const std::optional<std::string> problem = nowhere.keep(*model, 0, all);
  CHECK(problem && problem->find("cannot be written: No such file") != std::string::npos);
  CHECK(nowhere.count() == 0);
  // A disk that fills up: what was there goes, too.
  CacheFile file(folder() + "/target", "a key");
  CHECK(!file.keep(*model, 0, all));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{bytes(folder() + "/target").size() + 10, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  CHECK(file.keep(*model, 10, Tokens(1, 7))->find("cannot be written: File too large") != std::string::npos);
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK(file.count() == 0 && bytes(folder() + "/target").empty());
}

}  // namespace

int main() {
  what_is_kept_comes_back();
  only_the_same_text_is_taken();
  damage_is_noticed();
  a_file_that_cannot_be_written();
  ::unlink((folder() + "/target").c_str());
  ::rmdir(folder().c_str());
  return REPORT();
}
