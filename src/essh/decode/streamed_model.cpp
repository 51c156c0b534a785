#include "essh/decode/streamed_model.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "essh/base/log.h"
#include "essh/device/tuned_choice.h"
#include "essh/kernels/clear.h"

namespace essh {
namespace {

constexpr int kMostModes = 8, kMostHeadDim = 128;
constexpr Index kFewestRows = 256;  // of a cache that grows

constexpr Index round_up(Index x, Index unit) {
  return (x + unit - 1) / unit * unit;
}
constexpr Index ceil_div(Index x, Index unit) {
  return (x + unit - 1) / unit;
}

// A product of a step: rows of these tensors as tiles.
struct Product {
  std::vector<std::size_t> tensors;
  bool paired = false;
  TileFormat format = TileFormat::Plain;
  Index tiles = 0, steps = 0;

  Index row_bytes() const { return steps * tile_bytes(format); }  // of a row of tiles
};

// Formats of a step of these weights: those of the codes if there is such a step, else Plain.
struct StepFormats {
  TileFormat layers = TileFormat::Plain, head = TileFormat::Plain;
};
template <class T>
StepFormats formats_of(const ParameterLayout& layout, std::span<const CodedWeight> coded) {
  constexpr std::pair<Quantisation, TileFormat> kFormatOf[] = {
      {Quantisation::Q8, TileFormat::Q8}, {Quantisation::FP8, TileFormat::FP8}, {Quantisation::Q4, TileFormat::Q4}};
  std::optional<TileFormat> layers, head;
  for (std::size_t i = 0; i < coded.size(); ++i) {
    const auto& tensor = layout.tensors()[i];
    if (!tensor.is_matrix()) continue;
    if (coded[i].codes == nullptr) return {};
    auto& known = tensor.layer < 0 ? head : layers;
    for (const auto& [quantisation, format] : kFormatOf) {
      if (coded[i].quantisation != quantisation) continue;
      if (known && *known != format) return {};
      known = format;
    }
  }
  if (!layers || !head || !streamed_formats<T>(*layers, *head)) return {};
  return {*layers, *head};
}

// Codes and scales of tensors on the device, while they are packed.
struct UploadedCodes {
  std::vector<Array<std::byte>> memory;
  std::vector<CodedMatrix> parts;

  void add(Stream& stream, const CodedWeight& weight) {
    const auto upload = [&](const std::byte* from, Index bytes) {
      memory.emplace_back(stream.device(), bytes, "codes of weights");
      stream.copy(memory.back().data(), from, static_cast<std::size_t>(bytes));
      return memory.back().data();
    };
    // The last row may end before its stride.
    const auto* codes =
        upload(weight.codes, (weight.rows - 1) * weight.code_stride + code_bytes(weight.quantisation, weight.cols));
    constexpr Index kScale = sizeof(BFloat16);
    const auto* scales =
        upload(weight.scales, (weight.rows - 1) * weight.scale_stride + scale_count(weight.cols) * kScale);
    parts.push_back({.codes = codes,
                     .scales = reinterpret_cast<const BFloat16*>(scales),
                     .rows = weight.rows,
                     .cols = weight.cols,
                     .code_stride = weight.code_stride,
                     .scale_stride = weight.scale_stride / kScale});
  }
};

// Which tiles of each product each worker takes. Streams (load: their bytes) come out equally long, since every
// product's remainder goes to those who have had the least.
std::vector<StreamShare> distribute(const std::vector<Product>& products, int workers) {
  std::vector<StreamShare> shares;
  std::vector<Index> load(static_cast<std::size_t>(workers));
  std::vector<std::size_t> order(load.size());
  std::vector<bool> more(load.size());
  for (const auto& product : products) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t worker) { return load[worker]; });
    std::vector<Index> count(load.size(), product.tiles / workers);
    for (Index i = 0; i < product.tiles % workers; ++i) ++count[order[static_cast<std::size_t>(i)]];
    // Hidden units come in rounds, in which every worker takes one tile.
    std::vector<Index> rank(load.size());
    for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<Index>(i);
    Index first = 0;
    for (std::size_t w = 0; w < load.size(); ++w) {
      // The down product follows gate and up at once.
      if (&product == products.data() || !std::prev(&product)->paired) more[w] = count[w] > product.tiles / workers;
      shares.push_back({.first = static_cast<int>(product.paired ? rank[w] : first),
                        .count = static_cast<int>(count[w]),
                        .begin = static_cast<int>(load[w] / 16),
                        .steps = static_cast<int>(product.steps),
                        .stride = product.paired ? workers : 1,
                        .more = more[w]});
      first += count[w];
      load[w] += count[w] * product.row_bytes();
    }
  }
  return shares;
}

bool fits(const ModelConfig& c) {
  const auto attention_fits = [](const AttentionSizes& a) { return a.head_dim % 8 == 0 && a.head_dim <= kMostHeadDim; };
  if (c.hidden_size % 8 != 0) return false;
  if (c.has(MixerKind::Spectral) && (c.spectral_modes > kMostModes || c.channel_width % 2 != 0)) return false;
  if (c.has(MixerKind::SlidingAttention) && !attention_fits(c.sliding_attention)) return false;
  return !c.has(MixerKind::FullAttention) || attention_fits(c.full_attention);
}

template <class E>
Array<E> on_device(Stream& stream, const std::vector<E>& from, const char* purpose) {
  Array<E> to(stream.device(), std::ssize(from), purpose);
  stream.copy(to.data(), from.data(), from.size() * sizeof(E));
  return to;
}

template <class E>
std::vector<E> on_host(Stream& stream, Vector<const E> from) {
  std::vector<E> to(static_cast<std::size_t>(from.size));
  download(stream, from, std::span(to));
  return to;
}
std::vector<float> on_host(Stream& stream, const Weight& table) {
  const auto view = table.as<float>();
  return on_host(stream, Vector<const float>{view.data, view.rows * view.cols});
}

// Found by search on an H200 for 1.5b, its tiers and 370m. Three digits each: SlotsInFlight of projections (workers
// with few tiles, with more), output, gate and up (few, more), down (few, more) and head.
constexpr std::array<std::array<int, 8>, 9> kPaces = {{
    {244, 244, 244, 244, 244, 244, 244, 244},
    {355, 246, 224, 244, 278, 684, 595, 345},  // one sequence of 1.5b
    {243, 245, 242, 234, 244, 344, 455, 244},  // of its tier T7
    {214, 244, 135, 222, 222, 146, 169, 844},  // T4
    {214, 244, 135, 232, 122, 646, 189, 544},  // T1
    {214, 214, 135, 222, 223, 146, 168, 544},  // of 370m
    {243, 243, 253, 244, 288, 384, 384, 247},  // two sequences
    {141, 243, 253, 143, 287, 281, 282, 243},  // four
    {112, 213, 272, 293, 465, 234, 237, 244},  // eight
}};
StreamPace pace_of(const std::array<int, 8>& digits) {
  const auto at = [&](std::size_t i) {
    const auto digit = [&](int unit) { return static_cast<std::uint8_t>(digits[i] / unit % 10); };
    return SlotsInFlight{.fed = digit(100), .hungry = digit(10), .until = digit(1)};
  };
  return {{{at(0), at(1)}, {at(2), at(2)}, {at(3), at(4)}, {at(5), at(6)}, {at(7), at(7)}}};
}

double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

}  // namespace

template <class T>
std::unique_ptr<StreamedModel<T>> StreamedModel<T>::make(const Model<T>& model, const Weights& weights,
                                                         std::span<const CodedWeight> coded,
                                                         const std::vector<StatePart>& parts,
                                                         const std::vector<Index>& fixed_offsets, Stream& stream) {
  const auto& c = model.config();
  if (stream.device() == Device::Cpu || !fits(c)) return nullptr;
  if constexpr (kWithCuda) {
    Index besides = c.hidden_size;
    for (Index layer = 0; layer < c.num_hidden_layers; ++layer) {
      const auto kind = c.kind(layer);
      const auto& a = kind == MixerKind::SlidingAttention ? c.sliding_attention : c.full_attention;
      besides = std::max(besides, kind == MixerKind::Spectral ? c.spectral_channels * c.channel_width
                                                              : a.num_attention_heads * a.head_dim);
    }
    const Index widest = std::max(besides, c.intermediate_size);
    const auto formats = formats_of<T>(model.layout(), coded);
    const auto limits = streamed_limits<T>(*stream.cuda(), round_up(widest, 8), c.num_hidden_layers, formats.layers);
    if (limits.sequences == 0) return nullptr;
    std::unique_ptr<StreamedModel> made(new StreamedModel(model, limits, stream));
    made->operands_.widest = static_cast<int>(round_up(widest, 8));
    made->operands_.besides = static_cast<int>(round_up(besides, 8));
    made->operands_.layer_format = formats.layers;
    made->operands_.head_format = formats.head;
    try {
      made->lay_out(model.layout(), weights, coded, parts, fixed_offsets);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::OutOfMemory) throw;
      log::warn("single tokens run kernel by kernel, which is slower: {}", e.what());
      return nullptr;
    }
    return made;
  }
  return nullptr;
}

template <class T>
std::string_view StreamedModel<T>::quantisation() const {
  constexpr std::string_view kNames[] = {"", "q8", "fp8", "q4"};
  return kNames[static_cast<std::size_t>(operands_.layer_format)];
}

template <class T>
void StreamedModel<T>::lay_out(const ParameterLayout& layout, const Weights& weights,
                               std::span<const CodedWeight> coded, const std::vector<StatePart>& parts,
                               const std::vector<Index>& fixed_offsets) {
  const auto& c = config_;
  std::vector<Product> products;
  const auto add_to = [&](TileFormat format, std::vector<std::size_t> tensors, bool paired) {
    Index rows = 0;
    for (const auto tensor : tensors) rows += weights[tensor].rows;
    const auto& first = weights[tensors.front()];
    products.push_back({.tensors = std::move(tensors),
                        .paired = paired,
                        .format = format,
                        .tiles = paired ? ceil_div(first.rows, kTileRows / 2) : ceil_div(rows, kTileRows),
                        .steps = ceil_div(first.cols, tile_columns<T>(format))});
  };
  const auto add = [&](std::vector<std::size_t> tensors, bool paired = false) {
    add_to(operands_.layer_format, std::move(tensors), paired);
  };

  // Where caches begin: at a place that grows with the rows of those that grow.
  std::vector<Index> cache_at(parts.size()), cache_per_row(parts.size());
  Index at = 0, per_row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind != StatePart::Kind::Rows) continue;
    cache_at[i] = at;
    cache_per_row[i] = per_row;
    const Index bytes = stored_bytes(parts[i].format, parts[i].columns);
    if (parts[i].window > 0)
      at += round_up(bytes * (parts[i].window + kSpareRows), 256);
    else
      per_row += bytes;
  }

  cache_bytes_ = at + per_row * kFewestRows;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind == StatePart::Kind::Fixed)
      fixed_bytes_ = std::max(fixed_bytes_, fixed_offsets[i] + stored_bytes(parts[i].format, parts[i].columns));
  }

  std::vector<float> modal;
  std::vector<double> frequencies;
  std::vector<Index> modal_at, frequencies_at;
  std::size_t part = 0;
  for (Index l = 0; l < c.num_hidden_layers; ++l) {
    const auto find = [&](const char* name) { return layout.find(l, name); };
    StreamedLayer layer{};
    layer.mixer_gain = weights.vector<float>(find("input_layernorm.weight")).data;
    layer.ffn_gain = weights.vector<float>(find("post_attention_layernorm.weight")).data;
    modal_at.push_back(std::ssize(modal));
    frequencies_at.push_back(std::ssize(frequencies));
    layer.attends = c.kind(l) != MixerKind::Spectral;
    if (layer.attends) {
      const bool sliding = c.kind(l) == MixerKind::SlidingAttention;
      const auto& a = sliding ? c.sliding_attention : c.full_attention;
      layer.heads = static_cast<int>(a.num_attention_heads);
      layer.kv_heads = static_cast<int>(a.key_value_heads());
      layer.head_dim = static_cast<int>(a.head_dim);
      layer.window = static_cast<int>(sliding ? c.sliding_window : 0);
      layer.ring = sliding ? layer.window + static_cast<int>(kSpareRows) : 0;
      layer.most_shares = std::max(1, limits_.workers / layer.heads);
      for (Index i = 0; i < a.head_dim / 2; ++i)
        frequencies.push_back(
            std::exp2(-2.0 * static_cast<double>(i) / static_cast<double>(a.head_dim) * std::log2(a.rope_theta)));
      layer.keys = cache_at[part];
      layer.keys_per_row = cache_per_row[part];
      layer.values = cache_at[part + 1];
      layer.values_per_row = cache_per_row[part + 1];
      part += 2;
      add({find("self_attn.q_proj.weight"), find("self_attn.k_proj.weight"), find("self_attn.v_proj.weight")});
      add({find("self_attn.o_proj.weight")});
    } else {
      const auto read = [&](const char* name) { return on_host(stream_, weights[find(name)]); };
      const auto decay = read("mixer.decay"), frequency = read("mixer.frequency"), cosine = read("mixer.readout_cos"),
                 sine = read("mixer.readout_sin"), zero_lag = read("mixer.zero_lag"),
                 write = read("mixer.write_proj.bias"), read_bias = read("mixer.read_proj.bias"),
                 clock = read("mixer.clock_proj.bias");
      for (std::size_t i = 0; i < decay.size(); ++i) {
        const double rho = std::exp(-softplus(decay[i]));
        modal.push_back(static_cast<float>(rho * std::cos(frequency[i])));
        modal.push_back(static_cast<float>(rho * std::sin(frequency[i])));
        modal.insert(modal.end(), {cosine[i], sine[i], zero_lag[i] * cosine[i], write[i], read_bias[i], clock[i]});
      }
      layer.blend = weights.vector<float>(find("mixer.value_blend")).data;
      layer.state = fixed_offsets[part++];
      add({find("mixer.value_proj.weight"), find("mixer.write_proj.weight"), find("mixer.read_proj.weight"),
           find("mixer.clock_proj.weight")});
      add({find("mixer.out_proj.weight")});
    }
    add({find("mlp.gate_proj.weight"), find("mlp.up_proj.weight")}, true);
    add({find("mlp.down_proj.weight")});
    layers_.push_back(layer);
  }
  const auto embedding = layout.find(-1, "model.embed_tokens.weight");
  add_to(operands_.head_format, {embedding}, false);

  modal_ = on_device(stream_, modal, "modal constants");
  frequencies_ = on_device(stream_, frequencies, "rotary frequencies");
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].modal = modal_.data() + modal_at[l];
    layers_[l].frequencies = frequencies_.data() + frequencies_at[l];
  }

  const auto workers = static_cast<std::size_t>(limits_.workers);
  const auto shares = distribute(products, limits_.workers);
  std::vector<Index> stream_begin(workers);
  Index bytes = 0;
  for (std::size_t w = 0; w < workers; ++w) {
    const auto& last = shares[(products.size() - 1) * workers + w];
    stream_begin[w] = bytes;
    bytes += Index{last.begin} * 16 + Index{last.count} * products.back().row_bytes();
  }
  streams_ = Array<std::byte>(stream_.device(), bytes, "weights as tiles");
  if constexpr (kWithCuda) {
    for (std::size_t p = 0; p < products.size(); ++p) {
      const auto& product = products[p];
      std::vector<Index> places(static_cast<std::size_t>(product.tiles));
      for (std::size_t w = 0; w < workers; ++w) {
        const auto& share = shares[p * workers + w];
        for (Index t = 0; t < share.count; ++t)
          places[static_cast<std::size_t>(share.first + t * share.stride)] =
              stream_begin[w] + Index{share.begin} * 16 + t * product.row_bytes();
      }
      const auto there = on_device(stream_, places, "places of tiles");
      if (product.format == TileFormat::Plain) {
        PackTiles<T> pack{.parts = {},
                          .paired = product.paired,
                          .steps = product.steps,
                          .to = there.view(),
                          .stream = streams_.data()};
        for (const auto tensor : product.tensors) pack.parts.push_back(weights[tensor].as<T>());
        run(*stream_.cuda(), pack);
        stream_.wait();
      } else {
        UploadedCodes codes;
        for (const auto tensor : product.tensors) codes.add(stream_, coded[tensor]);
        run(*stream_.cuda(), PackCodedTiles{.format = product.format,
                                            .parts = codes.parts,
                                            .paired = product.paired,
                                            .steps = product.steps,
                                            .to = there.view(),
                                            .stream = streams_.data()});
        stream_.wait();
      }
    }
  }
  shares_ = on_device(stream_, shares, "shares of products");
  stream_begin_ = on_device(stream_, stream_begin, "beginnings of streams");

  auto& op = operands_;
  op.layers = static_cast<int>(c.num_hidden_layers);
  op.hidden = static_cast<int>(c.hidden_size);
  op.channels = static_cast<int>(c.spectral_channels);
  op.modes = static_cast<int>(c.spectral_modes);
  op.width = static_cast<int>(c.channel_width);
  op.units = static_cast<int>(c.intermediate_size);
  op.vocabulary = static_cast<int>(c.vocab_size);
  op.rms_eps = static_cast<float>(c.rms_norm_eps);
  op.value_eps = static_cast<float>(c.value_norm_eps);
  op.out_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.spectral_channels)));
  op.mixer_rows = static_cast<int>(round_up(c.spectral_channels * (c.channel_width + 3 * c.spectral_modes), kTileRows));
  op.workers = limits_.workers;
  op.shares = shares_.data();
  op.stream_begin = stream_begin_.data();
  op.streams = streams_.data();
  op.embedding = weights[embedding].as<T>().data;
  op.last_gain = weights.vector<float>(layout.find(-1, "model.norm.weight")).data;
  make_exchange();
}

// Steps of `count` sequences in full windows, always from the same state.
template <class T>
class StreamedModel<T>::TrialSteps {
 public:
  TrialSteps(StreamedModel& model, Index count)
      : model_(model),
        entering_(model.stream_.device(), model.fixed_bytes_, "states to try steps on"),
        leaving_(model.stream_.device(), count * model.fixed_bytes_, "states to try steps on"),
        caches_(model.stream_.device(), count * model.cache_bytes_, "caches to try steps on"),
        logits_(model.stream_.device(), count * model.config_.vocab_size, "logits to try steps on"),
        keys_(model.stream_.device(), count, "tokens to try steps on") {
    if (model.config_.has(MixerKind::SlidingAttention)) position_ = model.config_.sliding_window - 1;
    if (model.config_.has(MixerKind::FullAttention)) position_ = kFewestRows - 1;
    clear(model.stream_, entering_.view());
    clear(model.stream_, caches_.view());
    clear(model.stream_, keys_.view());
    for (Index b = 0; b < count; ++b)
      sequences_.push_back({.entering = entering_.data(),
                            .leaving = leaving_.data() + b * model.fixed_bytes_,
                            .rows = caches_.data() + b * model.cache_bytes_,
                            .capacity = kFewestRows,
                            .position = position_,
                            .newest = 0,
                            .token = 0,
                            .drawn = nullptr});
  }

  Trial run(const StreamPace& pace) {
    constexpr int kTimed = 4;
    step(pace);
    model_.stream_.wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimed; ++i) step(pace);
    model_.stream_.wait();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    const auto logits = on_host(model_.stream_, Vector<const float>(logits_.view()));
    const std::string_view bytes(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
    return {.fingerprint = std::hash<std::string_view>()(bytes), .cost = time.count()};
  }

 private:
  void step(const StreamPace& pace) {
    model_.operands_.pace = pace;
    model_.launch_step(sequences_, logits_.data(), keys_.data());
  }

  StreamedModel& model_;
  Array<std::byte> entering_, leaving_, caches_;
  Array<float> logits_;
  Array<LogitKey> keys_;
  Index position_ = 0;
  std::vector<StreamedSequence> sequences_;
};

template <class T>
StreamPace StreamedModel<T>::pace(Index count) {
  constexpr auto kCandidates = [] {
    std::array<Index, kPaces.size()> all{};
    std::iota(all.begin(), all.end(), Index{0});
    return all;
  }();
  const auto numbered = [](Index i) { return pace_of(kPaces[static_cast<std::size_t>(i)]); };
  if (!stream_.tunes_launches()) return numbered(0);
  const Index tried = std::min(sequences(), static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(count))));
  if (const auto known = paces_.find(tried); known != paces_.end()) return known->second;
  const auto name =
      fmt::format("pace of the streamed step {}x{}x{}x{} {} of {}", config_.num_hidden_layers, config_.hidden_size,
                  config_.spectral_channels * config_.channel_width, config_.intermediate_size,
                  quantisation().empty() ? traits(format_of<T>()).name : quantisation(), tried);
  auto chosen = stored_choice(stream_.choices(), name, kCandidates);
  if (!chosen) {
    try {
      TrialSteps steps(*this, tried);
      chosen = tuned_choice(
          stream_.choices(), name, kCandidates, [&](Index candidate) { return steps.run(numbered(candidate)); }, 0.005);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::OutOfMemory) throw;
      chosen = 0;  // no room for trials
    }
  }
  return paces_[tried] = numbered(*chosen);
}

template <class T>
void StreamedModel<T>::make_exchange() {
  const auto take = [&](Index bytes) {
    const auto offset = static_cast<int>(exchange_bytes_);
    exchange_bytes_ += round_up(bytes, 16);
    return offset;
  };
  const Index residual = residual_bytes<T>(config_.hidden_size);
  constexpr Index kNarrow = sizeof(T);
  for (auto& layer : layers_) {
    if (layer.attends) {
      const Index rows = (layer.heads + 2 * layer.kv_heads) * layer.head_dim;
      layer.projected = take(round_up(rows, kTileRows) * Index{sizeof(float)});
      layer.mixed = take(Index{layer.heads} * layer.most_shares * (layer.head_dim + 4) * Index{sizeof(float)});
    } else {
      layer.projected = take(Index{operands_.mixer_rows} * Index{sizeof(float)});
      layer.mixed = take(round_up(config_.spectral_channels * config_.channel_width, 8) * kNarrow);
    }
    layer.middle = take(residual);
    layer.hidden = take(round_up(config_.intermediate_size, 8) * kNarrow);
    layer.leaving = take(residual);
  }
  layers_there_ = on_device(stream_, layers_, "layers of the step");
  operands_.layer = layers_there_.data();
  const std::vector<std::byte> unsent(static_cast<std::size_t>(exchange_bytes_ * limits_.sequences), std::byte{0xff});
  for (auto& one : exchange_) one = on_device(stream_, unsent, "exchanged activations");
}

template <class T>
void StreamedModel<T>::step(std::span<const StreamedSequence> list, float* logits, LogitKey* keys) {
  ESSH_ASSERT(!list.empty() && std::ssize(list) <= sequences());
  operands_.pace = pace(std::ssize(list));
  launch_step(list, logits, keys);
}

template <class T>
void StreamedModel<T>::launch_step(std::span<const StreamedSequence> list, float* logits, LogitKey* keys) {
  auto& op = operands_;
  op.count = static_cast<int>(list.size());
  std::ranges::copy(list, op.sequence.begin());
  if (config_.has(MixerKind::SlidingAttention)) {
    const Index ring = config_.sliding_window + kSpareRows;
    for (auto& sequence : std::span(op.sequence).first(list.size()))
      sequence.newest = static_cast<int>(sequence.position % ring);
  }
  op.exchange = exchange_[turn_].data();
  op.exchange_again = exchange_[1 - turn_].data();
  op.exchange_again_bytes = reached_[1 - turn_];
  op.logits = logits;
  op.keys = keys;
  if constexpr (kWithCuda) run(*stream_.cuda(), op);
  reached_[turn_] = exchange_bytes_ * op.count;
  reached_[1 - turn_] = 0;
  turn_ = 1 - turn_;
}

template class StreamedModel<float>;
template class StreamedModel<BFloat16>;

}  // namespace essh
