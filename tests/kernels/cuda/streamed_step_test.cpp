#include "essh/kernels/reference/streamed_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "essh/base/rng.h"
#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

constexpr const char* kNames[] = {"plain", "q8", "fp8", "q4"};

template <class E>
Array<E> on_gpu(const std::vector<E>& from) {
  Array<E> to(Device::Cuda, std::max<Index>(1, std::ssize(from)), "test");
  gpu().copy(to.data(), from.data(), from.size() * sizeof(E));
  return to;
}

// A matrix of any format on both sides. Rows are longer than `cols`, as in a slice; the codes beyond are random too.
class Weights {
 public:
  Weights(TileFormat format, Index rows, Index cols, Rng& rng) : format_(format), rows_(rows), cols_(cols) {
    const Index groups = (cols + kTileGroup - 1) / kTileGroup + 1, stride = groups * kTileGroup;
    if (format == TileFormat::Plain) {
      for (Index i = 0; i < rows * stride; ++i) plain_.emplace_back(static_cast<float>(0.3 * rng.normal()));
      plain_there_ = on_gpu(plain_);
    } else {
      const Index row_bytes = format == TileFormat::Q4 ? stride / 2 : stride;
      for (Index i = 0; i < rows * row_bytes; ++i) codes_.push_back(random_code(rng));
      const double largest = format == TileFormat::Q8 ? 127 : format == TileFormat::FP8 ? 448 : 7;
      for (Index i = 0; i < rows * groups; ++i)
        scales_.emplace_back(static_cast<float>((0.2 + rng.uniform()) / largest));
      codes_there_ = on_gpu(codes_);
      scales_there_ = on_gpu(scales_);
    }
    here_ = {codes_.data(), scales_.data(), rows, cols, format == TileFormat::Q4 ? stride / 2 : stride, groups};
    stride_ = stride;
  }

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  BFloat16 operator()(Index r, Index c) const {
    if (format_ == TileFormat::Plain) return plain_[static_cast<std::size_t>(r * stride_ + c)];
    return reference::coded_weight(format_, here_, r, c);
  }
  Matrix<const BFloat16> plain() const { return {plain_there_.data(), rows_, cols_, stride_}; }
  CodedMatrix coded() const {
    auto there = here_;
    there.codes = codes_there_.data();
    there.scales = scales_there_.data();
    return there;
  }

 private:
  std::byte random_code(Rng& rng) const {
    for (;;) {
      const auto code = static_cast<unsigned>(rng.below(256));
      const bool unused =
          (format_ == TileFormat::Q8 && code == 0x80) || (format_ == TileFormat::FP8 && (code & 0x7f) == 0x7f);
      if (!unused) return static_cast<std::byte>(code);
    }
  }

  TileFormat format_;
  Index rows_, cols_, stride_ = 0;
  std::vector<BFloat16> plain_, scales_;
  std::vector<std::byte> codes_;
  CodedMatrix here_ = {};
  Array<BFloat16> plain_there_, scales_there_;
  Array<std::byte> codes_there_;
};

Index tiles_of(const std::vector<const Weights*>& parts, bool paired) {
  Index rows = 0;
  for (const auto* part : parts) rows += part->rows();
  return paired ? (parts[0]->rows() + 7) / 8 : (rows + kTileRows - 1) / kTileRows;
}

void pack(TileFormat format, const std::vector<const Weights*>& parts, bool paired, Index steps,
          const std::vector<Index>& places, std::byte* stream) {
  if (places.empty()) return;
  const auto to = on_gpu(places);
  if (format == TileFormat::Plain) {
    PackTiles<BFloat16> op{.parts = {}, .paired = paired, .steps = steps, .to = to.view(), .stream = stream};
    for (const auto* part : parts) op.parts.push_back(part->plain());
    run(gpu(), op);
  } else {
    PackCodedTiles op{
        .format = format, .parts = {}, .paired = paired, .steps = steps, .to = to.view(), .stream = stream};
    for (const auto* part : parts) op.parts.push_back(part->coded());
    run(gpu(), op);
  }
  gpu().wait();
}

TEST(PackTilesCuda, TilesHoldTheWeightsBitByBit) {
  ESSH_NEEDS_GPU();
  Rng rng(3);
  for (const auto format : {TileFormat::Plain, TileFormat::Q8, TileFormat::FP8, TileFormat::Q4}) {
    for (const bool paired : {false, true}) {
      for (const auto& [rows, cols] :
           {std::pair<Index, Index>{1, 1}, {7, 31}, {16, 32}, {17, 33}, {43, 100}, {24, 72}}) {
        const Weights a(format, rows, cols, rng), b(format, paired ? rows : rows + 5, cols, rng);
        const std::vector<const Weights*> parts = {&a, &b};
        const Index tiles = tiles_of(parts, paired), width = tile_columns<BFloat16>(format);
        const Index steps = (cols + width - 1) / width, row_bytes = steps * tile_bytes(format);
        // Rows of tiles in reverse order, with a gap between them.
        std::vector<Index> places;
        for (Index t = 0; t < tiles; ++t) places.push_back((tiles - 1 - t) * (row_bytes + 16));
        std::vector<std::byte> stream(static_cast<std::size_t>(tiles * (row_bytes + 16)), std::byte{0x5a});
        const auto there = on_gpu(stream);
        pack(format, parts, paired, steps, places, there.data());
        gpu().copy(stream.data(), there.data(), stream.size());
        Index wrong = 0;
        for (Index t = 0; t < tiles; ++t) {
          const auto* begin = stream.data() + places[static_cast<std::size_t>(t)];
          for (int r = 0; r < kTileRows; ++r) {
            const Weights* from = &a;
            Index row = t * kTileRows + r;
            if (paired) {
              row = t * 8 + r % 8;
              if (r >= 8) from = &b;
            } else if (row >= a.rows()) {
              row -= a.rows();
              from = &b;
            }
            for (Index c = 0; c < steps * width; ++c) {
              const auto found = reference::tile_weight(format, begin + c / width * tile_bytes(format), r,
                                                        static_cast<int>(c % width));
              const bool inside = row < from->rows() && c < cols;
              const auto wanted = inside ? (*from)(row, c) : BFloat16(0.0f);
              // Zero has two signs.
              if (static_cast<float>(found) != static_cast<float>(wanted)) ++wrong;
            }
          }
          for (Index i = 0; i < 16; ++i) wrong += begin[row_bytes + i] != std::byte{0x5a};
        }
        EXPECT_EQ(wrong, 0) << kNames[static_cast<int>(format)] << ", " << rows << " x " << cols << ", paired "
                            << paired;
      }
    }
  }
}

// A step of one layer without a mixer: embedding, feed-forward, head. All its products read tiles.
class FeedForwardStep {
 public:
  FeedForwardStep(TileFormat format, Index hidden, Index units, Index vocabulary, Rng& rng)
      : layer_format_(format),
        head_format_(format == TileFormat::Q4 ? TileFormat::Q8 : format),
        gate_(format, units, hidden, rng),
        up_(format, units, hidden, rng),
        down_(format, hidden, units, rng),
        head_(head_format_, vocabulary, hidden, rng) {
    for (auto* gain : {&ffn_gain_, &last_gain_}) {
      for (Index i = 0; i < hidden; ++i) gain->push_back(static_cast<float>(1 + 0.3 * rng.normal()));
    }
    for (Index r = 0; r < vocabulary; ++r) {
      for (Index c = 0; c < hidden; ++c) embedding_.push_back(head_(r, c));
    }
  }

  // Logits of each token, sequences x vocabulary.
  std::vector<float> run_step(const std::vector<std::int32_t>& tokens, int workers, SlotsInFlight in_flight,
                              bool in_rounds, std::vector<std::int32_t>& likeliest) const {
    const Index hidden = head_.cols(), units = gate_.rows(), vocabulary = head_.rows();
    struct Product {
      std::vector<const Weights*> parts;
      bool paired;
      TileFormat format;
      Index tiles, steps;
    };
    const auto product = [&](std::vector<const Weights*> parts, bool paired, TileFormat format) {
      const Index width = tile_columns<BFloat16>(format), steps = (parts[0]->cols() + width - 1) / width;
      const Index tiles = tiles_of(parts, paired);
      return Product{std::move(parts), paired, format, tiles, steps};
    };
    const std::vector<Product> products = {{{}, false, layer_format_, 0, 0},  // projections of no channel
                                           {{}, false, layer_format_, (hidden + kTileRows - 1) / kTileRows, 0},
                                           product({&gate_, &up_}, true, layer_format_),
                                           product({&down_}, false, layer_format_),
                                           product({&head_}, false, head_format_)};
    std::vector<StreamShare> shares;
    std::vector<Index> load(static_cast<std::size_t>(workers));
    for (const auto& p : products) {
      for (int w = 0; w < workers; ++w) {
        // Hidden units in rounds, if so asked; all other tiles follow each other.
        const bool rounds = p.paired && in_rounds;
        const Index first = rounds ? w : p.tiles * w / workers;
        const Index count = rounds ? (p.tiles + workers - 1 - w) / workers : p.tiles * (w + 1) / workers - first;
        auto& bytes = load[static_cast<std::size_t>(w)];
        shares.push_back({.first = static_cast<int>(first),
                          .count = static_cast<int>(count),
                          .begin = static_cast<int>(bytes / 16),
                          .steps = static_cast<int>(p.steps),
                          .stride = rounds ? workers : 1,
                          .more = w % 2});
        bytes += count * p.steps * tile_bytes(p.format);
      }
    }
    std::vector<Index> begin(load.size());
    std::exclusive_scan(load.begin(), load.end(), begin.begin(), Index{0});
    const Array<std::byte> streams(Device::Cuda, begin.back() + load.back(), "test");
    for (std::size_t p = 0; p < products.size(); ++p) {
      if (products[p].parts.empty()) continue;
      std::vector<Index> places(static_cast<std::size_t>(products[p].tiles));
      for (std::size_t w = 0; w < load.size(); ++w) {
        const auto& share = shares[p * load.size() + w];
        for (Index t = 0; t < share.count; ++t)
          places[static_cast<std::size_t>(share.first + t * share.stride)] =
              begin[w] + Index{share.begin} * 16 + t * share.steps * tile_bytes(products[p].format);
      }
      pack(products[p].format, products[p].parts, products[p].paired, products[p].steps, places, streams.data());
    }

    const Index residual = residual_bytes<BFloat16>(hidden), between = (units + 7) / 8 * 16;
    StreamedLayer layer{};
    const auto ffn_gain = on_gpu(ffn_gain_), last_gain = on_gpu(last_gain_);
    layer.mixer_gain = layer.ffn_gain = ffn_gain.data();
    layer.middle = 0;
    layer.hidden = static_cast<int>(residual);
    layer.leaving = static_cast<int>(residual + between);
    const auto count = tokens.size();
    const auto exchange =
        on_gpu(std::vector<std::byte>(count * static_cast<std::size_t>(2 * residual + between), std::byte{0xff}));
    const auto layers = on_gpu(std::vector{layer});
    const auto embedding = on_gpu(embedding_);
    const auto shares_there = on_gpu(shares);
    const auto begin_there = on_gpu(begin);
    const Array<float> logits(Device::Cuda, std::ssize(tokens) * vocabulary, "test");
    const auto keys = on_gpu(std::vector<LogitKey>(count));
    StreamedStep<BFloat16> op{};
    op.layers = 1;
    op.hidden = static_cast<int>(hidden);
    op.modes = 1;
    op.width = 2;
    op.units = static_cast<int>(units);
    op.vocabulary = static_cast<int>(vocabulary);
    op.rms_eps = kEps;
    op.value_eps = kEps;
    op.out_scale = 1;
    op.layer = layers.data();
    op.workers = workers;
    op.shares = shares_there.data();
    op.stream_begin = begin_there.data();
    op.streams = streams.data();
    op.layer_format = layer_format_;
    op.head_format = head_format_;
    op.embedding = embedding.data();
    op.last_gain = last_gain.data();
    op.widest = static_cast<int>((std::max(hidden, units) + 7) / 8 * 8);
    op.besides = static_cast<int>((hidden + 7) / 8 * 8);
    op.pace.fill({in_flight, SlotsInFlight{.fed = in_flight.hungry, .hungry = 3, .until = 2}});
    op.lanes_give_back = std::getenv("ESSH_LANES_GIVE_BACK") != nullptr;
    op.count = static_cast<int>(count);
    for (std::size_t b = 0; b < count; ++b) op.sequence[b].token = tokens[b];
    op.exchange = exchange.data();
    op.exchange_again = exchange.data();
    op.logits = logits.data();
    op.keys = keys.data();
    run(gpu(), op);
    std::vector<float> found(count * static_cast<std::size_t>(vocabulary));
    gpu().copy(found.data(), logits.data(), found.size() * sizeof(float));
    std::vector<LogitKey> drawn(count);
    gpu().copy(drawn.data(), keys.data(), count * sizeof(LogitKey));
    likeliest.clear();
    for (const auto key : drawn) likeliest.push_back(token_of_key(key));
    return found;
  }

  // The definition, with the roundings of the step: inputs of products are bf16, all else is wide.
  std::vector<double> exact(std::int32_t token) const {
    const Index hidden = head_.cols();
    std::vector<double> x;
    for (Index c = 0; c < hidden; ++c) x.push_back(wide(embedding_[static_cast<std::size_t>(token * hidden + c)]));
    const auto rms = [](const std::vector<double>& v) {
      double squares = 0;
      for (const double e : v) squares += e * e;
      return 1 / std::sqrt(squares / static_cast<double>(v.size()) + static_cast<double>(kEps));
    };
    const auto scaled = [](const std::vector<double>& v, const std::vector<float>& gain) {
      std::vector<double> out;
      for (std::size_t i = 0; i < v.size(); ++i) out.push_back(narrow(static_cast<double>(gain[i]) * v[i]));
      return out;
    };
    const auto times = [](const Weights& w, Index row, const std::vector<double>& v) {
      double sum = 0;
      for (std::size_t i = 0; i < v.size(); ++i) sum += wide(w(row, static_cast<Index>(i))) * v[i];
      return sum;
    };
    const auto input = scaled(x, ffn_gain_);
    std::vector<double> between;
    for (Index u = 0; u < gate_.rows(); ++u) {
      const double gate = times(gate_, u, input) * rms(x), linear = times(up_, u, input) * rms(x);
      between.push_back(narrow(gate / (1 + std::exp(-gate)) * linear));
    }
    auto leaving = x;
    for (Index c = 0; c < hidden; ++c) leaving[static_cast<std::size_t>(c)] += times(down_, c, between);
    for (double& e : leaving) e = narrow(e);  // as it is sent
    const auto last = scaled(leaving, last_gain_);
    std::vector<double> logits;
    for (Index r = 0; r < head_.rows(); ++r) logits.push_back(times(head_, r, last) * rms(leaving));
    return logits;
  }

 private:
  static constexpr float kEps = 1e-5f;
  static double wide(BFloat16 x) { return static_cast<double>(static_cast<float>(x)); }
  static double narrow(double x) { return wide(BFloat16(static_cast<float>(x))); }

  TileFormat layer_format_, head_format_;
  Weights gate_, up_, down_, head_;
  std::vector<float> ffn_gain_, last_gain_;
  std::vector<BFloat16> embedding_;
};

TEST(StreamedStepCuda, ProductsOfEveryFormatAreThoseOfTheReference) {
  ESSH_NEEDS_GPU();
  if (streamed_limits<BFloat16>(gpu(), 1024, 1, TileFormat::Q8).sequences == 0) GTEST_SKIP() << "no sm_90";
  Rng rng(5);
  for (const auto format : {TileFormat::Plain, TileFormat::Q8, TileFormat::FP8, TileFormat::Q4}) {
    for (const auto& [hidden, units, vocabulary] :
         {std::array<Index, 3>{8, 1, 1}, {40, 37, 50}, {136, 100, 301}, {1032, 24, 70}, {40, 2100, 30}}) {
      const FeedForwardStep step(format, hidden, units, vocabulary, rng);
      std::vector<std::vector<float>> alone;
      std::vector<std::int32_t> tokens, likeliest;
      for (int b = 0; b < kStreamedSequences; ++b)
        tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary))));
      for (const auto token : tokens)
        alone.push_back(step.run_step({token}, gpu().multiprocessors(), {}, true, likeliest));
      for (std::size_t count = 1; count <= tokens.size(); ++count) {
        if (!next_case()) continue;
        SCOPED_TRACE(::testing::Message() << kNames[static_cast<int>(format)] << ", " << hidden << ", " << units << ", "
                                          << vocabulary << ", " << count << " sequences");
        const int workers = count % 3 == 0 ? 1 : count % 3 == 1 ? 5 : gpu().multiprocessors();
        // More in flight than the ring has slots, too.
        constexpr SlotsInFlight kSlots[] = {{1, 1, 1}, {16, 16, 16}, {1, 16, 3}, {3, 2, 9}};
        const auto found = step.run_step({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)}, workers,
                                         kSlots[count % std::size(kSlots)], count % 2 == 0, likeliest);
        for (std::size_t b = 0; b < count; ++b) {
          const std::span row(found.data() + b * static_cast<std::size_t>(vocabulary),
                              static_cast<std::size_t>(vocabulary));
          // Neither the other sequences nor the split among workers changes a bit.
          EXPECT_TRUE(std::ranges::equal(row, alone[b])) << "sequence " << b;
          EXPECT_EQ(likeliest[b], std::ranges::max_element(row) - row.begin());
          if (count != 1 && count != tokens.size()) continue;
          const auto exact = step.exact(tokens[b]);
          double largest = 0, apart = 0;
          for (std::size_t i = 0; i < exact.size(); ++i) {
            largest = std::max(largest, std::abs(exact[i]));
            apart =
                std::isfinite(row[i]) ? std::max(apart, std::abs(static_cast<double>(row[i]) - exact[i])) : INFINITY;
          }
          EXPECT_LE(apart, 4e-3 * largest);
        }
      }
    }
  }
}

}  // namespace
}  // namespace essh
