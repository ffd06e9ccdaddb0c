// A model without a runtime: its outputs are small exact numbers made from its inputs, the same on every machine.
#pragma once

#include <memory>
#include <string>

#include "model.h"
#include "session.h"

namespace hexgraft {

inline Sizes fake_sizes() {
  Sizes sizes;
  sizes.layers = 2;
  sizes.hidden = 4;
  sizes.kv_heads = 2;
  sizes.head_dim = 4;
  sizes.vocab = 300;
  sizes.context = 600;
  sizes.max_width = 32;
  sizes.mask_value = -100;
  sizes.rope.frequencies = {1, 0.01};
  sizes.logits = sizes.vocab;
  sizes.features = sizes.hidden;
  return sizes;
}

class FakeGraphs : public Graphs {
 public:
  explicit FakeGraphs(const Sizes& sizes) : sizes_(sizes) {}

  // Token 299 makes its row NaN. Keys and values of a row are the token, the layer and the place in the head.
  Result<double> run(int width, Cache& cache, Pass& pass) override {
    const auto* ids = static_cast<const std::int32_t*>(pass.ids.data());
    for (int row = 0; row < width; ++row) {
      const int visible = count_visible(row, width, cache, pass);
      for (int v = 0; v < sizes_.vocab; ++v) {
        const float value = static_cast<float>((v * 17 + ids[row] * 7 + visible * 3) % 101) / 8.0F;
        pass.logits.floats()[row * sizes_.vocab + v] = ids[row] == 299 ? value / 0.0F * 0.0F : value;
      }
      for (int i = 0; i < sizes_.hidden; ++i) {
        pass.hidden.floats()[row * sizes_.hidden + i] = static_cast<float>(ids[row] + i);
      }
      fill_rows(row, width, ids[row], cache, pass);
    }
    return 0.25;
  }
  std::string provider() const override { return "cpu"; }
  int threads() const override { return 1; }

 private:
  int count_visible(int row, int width, const Cache& cache, const Pass& pass) const {
    const int columns = cache.capacity() + width;
    int count = 0;
    for (int i = 0; i < columns; ++i) count += pass.mask.floats()[row * columns + i] == 0 ? 1 : 0;
    return count;
  }
  void fill_rows(int row, int width, int token, Cache& cache, Pass& pass) const {
    const int extent = cache.extent(width), behind = cache.capacity() + row;
    for (int layer = 0; layer < sizes_.layers; ++layer) {
      for (int head = 0; head < sizes_.kv_heads; ++head) {
        for (int d = 0; d < sizes_.head_dim; ++d) {
          const int place = head * sizes_.head_dim + d;
          const float value = static_cast<float>(token * 100 + layer * 10 + place);
          if (sizes_.joined) {
            cache.keys(layer)[(head * extent + behind) * sizes_.head_dim + d] = value;
            cache.values(layer)[(head * extent + behind) * sizes_.head_dim + d] = -value;
            continue;
          }
          const auto at = static_cast<std::size_t>(layer);
          pass.keys[at].floats()[place * width + row] = value;
          pass.values[at].floats()[(head * width + row) * sizes_.head_dim + d] = -value;
        }
      }
    }
  }

  Sizes sizes_;
};

inline std::unique_ptr<Model> fake_model(Sizes sizes, int capacity) {
  return std::make_unique<Model>(sizes, plain_memory(), capacity, std::make_unique<FakeGraphs>(sizes));
}

// Every bundle is the fake one, except those named "missing"; those named "joined" are in the joined layout.
inline Result<std::unique_ptr<Model>> fake_load(const LoadRequest& request) {
  if (request.bundle == "missing") return Error{"no_bundle", "there is no manifest at missing", "give the folder"};
  Sizes sizes = fake_sizes();
  sizes.joined = request.bundle == "joined";
  sizes.widths = request.widths;
  if (!request.widths.empty()) sizes.max_width = request.widths.back();
  return fake_model(sizes, request.whole ? sizes.context : kCacheStep);
}

}  // namespace hexgraft
