#include "essh/model/model.h"

#include <gtest/gtest.h>

#include <cstring>

#include "essh/kernels/clear.h"
#include "essh/kernels/cross_entropy.h"
#include "essh/model/device_weights.h"
#include "essh/model/initialise.h"
#include "essh/store/model_folder.h"
#include "tests/model/small_model.h"

// The whole model on the GPU, forward and backward, against the CPU in double.
namespace essh {
namespace {

// Sizes of real proportions: heads of 64, channels of 28 values with 8 modes, elastic in both directions.
ModelConfig real_config() {
  ModelConfig c;
  c.vocab_size = 320;
  c.hidden_size = 128;
  c.intermediate_size = 192;
  c.num_hidden_layers = 3;
  c.attention_layers = {1};
  c.num_attention_heads = 2;
  c.head_dim = 64;
  c.sliding_window = 100;
  c.spectral_channels = 4;
  c.spectral_modes = 8;
  c.channel_width = 28;
  c.elastic = {.channels = 4, .ffn = 192, .tiers = {}};
  return c;
}

struct Result {
  std::vector<double> hidden, gradient, losses;
};

template <class T>
std::vector<double> widened(Stream& stream, const T* from, Index count) {
  std::vector<T> host(static_cast<std::size_t>(count));
  stream.copy(host.data(), from, host.size() * sizeof(T));
  std::vector<double> values;
  for (const T x : host) {
    if constexpr (std::is_same_v<T, BFloat16>)
      values.push_back(static_cast<double>(static_cast<float>(x)));
    else
      values.push_back(static_cast<double>(x));
  }
  return values;
}

template <class T>
Result evaluate(Stream& stream, const Model<T>& model, const Weights<T>& weights, Capacity capacity, Index sequences,
                const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
  using W = Wide<T>;
  const auto rows = static_cast<Index>(tokens.size());
  Arena arena(stream.device());
  const Pass pass{
      .stream = stream, .arena = arena, .capacity = capacity, .sequences = sequences, .length = rows / sequences};
  const auto ids = arena.vector<std::int32_t>(rows), wanted = arena.vector<std::int32_t>(rows);
  upload(stream, tokens, ids);
  upload(stream, targets, wanted);
  const Array<W> gradient(stream.device(), model.layout().size(), "gradient");
  stream.copy(gradient.data(), std::vector<W>(static_cast<std::size_t>(gradient.size())).data(), gradient.bytes());
  typename Model<T>::Tape tape;
  const auto hidden = model.forward(pass, weights, ids, &tape);
  const auto logits = arena.matrix<T>(rows, model.config().vocab_size),
             d_hidden = arena.matrix<T>(rows, model.config().hidden_size);
  const auto losses = arena.vector<W>(rows);
  Result result;
  result.hidden = widened(stream, hidden.data, rows * hidden.cols);
  model.head(pass, weights, hidden, logits);
  launch(stream, CrossEntropy<T>{.logits = logits,
                                 .targets = wanted,
                                 .loss = losses,
                                 .d_logits = logits,
                                 .scale = 1.0 / static_cast<double>(rows)});
  const Gradients<T> gradients{&model.layout(), gradient.data()};
  model.head_backward(pass, weights, gradients, hidden, logits, d_hidden);
  model.backward(pass, weights, gradients, ids, tape, d_hidden);
  result.losses = widened(stream, losses.data, rows);
  result.gradient = widened(stream, gradient.data(), gradient.size());
  return result;
}

// Distance relative to the size, over all elements.
double relative_error(const std::vector<double>& x, const std::vector<double>& exact) {
  double distance = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    distance += (x[i] - exact[i]) * (x[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::isfinite(distance) ? std::sqrt(distance / std::max(size, 1e-30)) : INFINITY;
}

struct Bounds {
  double hidden, loss, gradient;
};

template <class T>
void check(const ModelConfig& config, Capacity capacity, Index sequences, Index length, const Bounds& bounds) {
  SCOPED_TRACE(::testing::Message() << length << " tokens at " << capacity.channels << "x" << capacity.ffn);
  // Weights that T holds exactly, so that all compute the same function.
  Parameters<float> parameters(config);
  fill_randomly(parameters, 7, 0.15);
  for (std::size_t i = 0; i < parameters.layout().tensors().size(); ++i) {
    if (!parameters.layout().tensors()[i].is_matrix()) continue;
    for (auto& x : parameters.tensor(i)) x = static_cast<float>(BFloat16(x));
  }
  Parameters<double> exact(config);
  std::copy_n(parameters.data(), parameters.layout().size(), exact.data());
  const auto count = static_cast<std::size_t>(sequences * length);
  const auto tokens = random_tokens(count, config.vocab_size, 1), targets = random_tokens(count, config.vocab_size, 2);

  auto cpu = cpu_stream(2);
  const auto wanted = evaluate(cpu, Model<double>(config), exact.weights(), capacity, sequences, tokens, targets);
  Stream gpu(std::make_unique<cuda::Stream>());
  const Model<T> model(config);
  const DeviceWeights<T> weights(parameters, gpu);
  const auto result = evaluate(gpu, model, weights.weights(), capacity, sequences, tokens, targets);
  EXPECT_LE(relative_error(result.hidden, wanted.hidden), bounds.hidden);
  EXPECT_LE(relative_error(result.losses, wanted.losses), bounds.loss);
  EXPECT_LE(relative_error(result.gradient, wanted.gradient), bounds.gradient);
  // And again, bit by bit.
  const auto again = evaluate(gpu, model, weights.weights(), capacity, sequences, tokens, targets);
  EXPECT_EQ(std::memcmp(again.gradient.data(), result.gradient.data(), result.gradient.size() * sizeof(double)), 0);
}

constexpr Bounds kSingle{.hidden = 1e-5, .loss = 1e-5, .gradient = 1e-4};
constexpr Bounds kHalf{.hidden = 3e-2, .loss = 3e-2, .gradient = 9e-2};

TEST(ModelCuda, Float32AgreesWithTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Index length : {1, 63, 64, 65, 300}) {
    for (const Capacity capacity : {Capacity{4, 192}, Capacity{2, 96}, Capacity{1, 40}})
      check<float>(real_config(), capacity, 2, length, kSingle);
  }
  check<float>(real_config(), {4, 192}, 1, 2048, kSingle);
  check<float>(small_config(), {3, 7}, 2, 67, kSingle);
  check<float>(small_config(), {2, 4}, 2, 67, kSingle);
}

TEST(ModelCuda, HalfPrecisionAgreesWithTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Index length : {1, 63, 64, 65, 300}) {
    for (const Capacity capacity : {Capacity{4, 192}, Capacity{2, 96}, Capacity{1, 40}})
      check<BFloat16>(real_config(), capacity, 2, length, kHalf);
  }
  check<BFloat16>(real_config(), {4, 192}, 1, 2048, kHalf);
  check<BFloat16>(real_config(), {4, 192}, 1, 5000, kHalf);
  check<BFloat16>(small_config(), {3, 7}, 2, 67, kHalf);
  check<BFloat16>(small_config(), {2, 4}, 2, 67, kHalf);
}

// Tensor by tensor, at the weights a run starts from with gates and clocks that have begun to listen: in one norm over
// all tensors a small one could be wrong unseen.
template <class T>
void check_tensors(Capacity capacity, double bound) {
  SCOPED_TRACE(::testing::Message() << capacity.channels << "x" << capacity.ffn);
  auto config = real_config();
  config.hidden_size = 256;
  config.num_attention_heads = 4;
  config.intermediate_size = 512;
  config.spectral_channels = 32;
  config.channel_width = 16;
  config.elastic = {.channels = 32, .ffn = 512, .tiers = {}};
  Parameters<float> parameters(config);
  initialise(parameters, config, 3);
  Rng rng(5);
  const auto& tensors = parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool listens = tensors[i].name.find("write_proj.weight") != std::string::npos ||
                         tensors[i].name.find("read_proj.weight") != std::string::npos ||
                         tensors[i].name.find("clock_proj.weight") != std::string::npos;
    for (auto& x : parameters.tensor(i)) {
      if (listens) x = static_cast<float>(0.03 * rng.normal());
      if (tensors[i].is_matrix()) x = static_cast<float>(BFloat16(x));
    }
  }
  Parameters<double> exact(config);
  std::copy_n(parameters.data(), parameters.layout().size(), exact.data());
  const auto tokens = random_tokens(2 * 512, config.vocab_size, 1),
             targets = random_tokens(2 * 512, config.vocab_size, 2);
  auto cpu = cpu_stream(2);
  const auto wanted = evaluate(cpu, Model<double>(config), exact.weights(), capacity, 2, tokens, targets);
  Stream gpu(std::make_unique<cuda::Stream>());
  const Model<T> model(config);
  const DeviceWeights<T> weights(parameters, gpu);
  const auto result = evaluate(gpu, model, weights.weights(), capacity, 2, tokens, targets);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const auto begin = parameters.layout().offset(i);
    const auto part = [&](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + begin, all.begin() + begin + tensor.rows * tensor.cols);
    };
    EXPECT_LE(relative_error(part(result.gradient), part(wanted.gradient)), bound) << tensor.name;
  }
}

TEST(ModelCuda, EveryTensorHasItsGradient) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Capacity capacity : {Capacity{32, 512}, Capacity{18, 208}, Capacity{8, 64}}) {
    check_tensors<float>(capacity, 1e-4);
    check_tensors<BFloat16>(capacity, 5e-2);
  }
}

// A slice of the family and the family at that capacity: the same products on the same numbers.
TEST(ModelCuda, ASliceIsTheFamilyAtItsCapacityBitByBit) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  const auto config = real_config();
  Parameters<float> parameters(config);
  fill_randomly(parameters, 7, 0.15);
  for (const Capacity capacity : {Capacity{2, 96}, Capacity{3, 40}}) {
    const auto sliced = config_at(config, capacity);
    Parameters<float> slice(sliced);
    const auto& tensors = parameters.layout().tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (Index r = 0; r < tensors[i].kept_rows(capacity); ++r)
        std::copy_n(parameters.tensor(i).data() + r * tensors[i].cols, tensors[i].kept_cols(capacity),
                    slice.tensor(i).data() + r * tensors[i].kept_cols(capacity));
    }
    Stream gpu(std::make_unique<cuda::Stream>());
    const auto tokens = random_tokens(300, config.vocab_size, 1);
    const auto logits = [&](const Model<BFloat16>& model, const DeviceWeights<BFloat16>& weights, Capacity at) {
      Arena arena(Device::Cuda);
      const Pass pass{.stream = gpu, .arena = arena, .capacity = at, .sequences = 1, .length = 300};
      const auto ids = arena.vector<std::int32_t>(300);
      upload(gpu, tokens, ids);
      const auto hidden = model.forward(pass, weights.weights(), ids, nullptr);
      const auto out = arena.matrix<float>(300, config.vocab_size);
      model.head(pass, weights.weights(), hidden, out);
      return widened(gpu, out.data, 300 * config.vocab_size);
    };
    const auto family = logits(Model<BFloat16>(config), DeviceWeights<BFloat16>(parameters, gpu), capacity);
    const auto alone = logits(Model<BFloat16>(sliced), DeviceWeights<BFloat16>(slice, gpu), full_capacity(sliced));
    EXPECT_EQ(std::memcmp(family.data(), alone.data(), family.size() * sizeof(double)), 0);
  }
}

}  // namespace
}  // namespace essh
