#include "essh/kernels/cuda/tuned_launch.h"

#include "essh/kernels/coded_rows.h"
#include "essh/kernels/selective_mix.h"
#include "essh/kernels/selective_scan.h"
#include "essh/kernels/window_attention.h"
#include "essh/kernels/window_step.h"
#include "tests/kernels/cuda/device_matrix.h"

namespace essh {
namespace {

template <class T>
DeviceMatrix<T> random_matrix(cuda::Stream& stream, Rng& rng, Index rows, Index cols, double spread = 1,
                              double mean = 0) {
  StridedMatrix<double> values(rows, cols, 0);
  DeviceMatrix<T> matrix(stream, rows, cols);
  matrix.set(values.normal(rng, spread, mean));
  return matrix;
}

// One pointer per row.
template <class T>
Array<T*> pointers_to(cuda::Stream& stream, const Matrix<T>& m) {
  std::vector<T*> rows;
  for (Index r = 0; r < m.rows; ++r) rows.push_back(m.row(r));
  Array<T*> pointers(Device::Cuda, m.rows, "a test");
  stream.copy(pointers.data(), rows.data(), rows.size() * sizeof(T*));
  return pointers;
}

template <class T>
class TunedLaunch : public CudaTest {
 protected:
  // Runs with the default, tuned, and with every candidate; the outputs, given as bits(), are always the same.
  template <class Run, class Bits>
  void expect_same_bits(const std::string& kernel, std::span<const Index> candidates, const Run& run_kernel,
                        const Bits& bits) {
    auto& choices = this->stream().choices();
    this->stream().set_tunes_launches(false);
    run_kernel();
    const auto wanted = bits();
    EXPECT_TRUE(choices.empty()) << "nothing is tuned";
    this->stream().set_tunes_launches(true);
    ::testing::internal::CaptureStderr();
    run_kernel();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "no candidate is refused";
    EXPECT_EQ(bits(), wanted) << kernel << ", tuned";
    std::vector<std::string> names;
    for (const auto& [name, choice] : choices) {
      // "attention 2x64x..." but not "attention rows 2x64x...".
      if (name.starts_with(kernel + " ") && std::isdigit(static_cast<unsigned char>(name[kernel.size() + 1])))
        names.push_back(name);
    }
    ASSERT_EQ(names.size(), 1u) << kernel;
    for (const Index candidate : candidates) {
      choices[names[0]] = std::to_string(candidate);
      run_kernel();
      EXPECT_EQ(bits(), wanted) << names[0] << ", " << candidate;
      EXPECT_EQ(choices[names[0]], std::to_string(candidate)) << "taken without a trial";
    }
    choices.clear();
  }
};
TYPED_TEST_SUITE(TunedLaunch, CudaTypes);

struct ScanSize {
  Index sequences, length, channels, modes, width;
};

template <class T>
struct Scan {
  ScanSize s;
  Rng rng{5};
  DeviceMatrix<T> v, d_z, z, d_v;
  DeviceMatrix<float> write, read, clock, entering, leaving, d_leaving, boundary, d_write, d_read, d_clock, d_entering;
  std::vector<DeviceMatrix<float>> tables, d_tables;
  Array<float*> entering_rows, leaving_rows;

  Scan(cuda::Stream& stream, const ScanSize& size)
      : s(size),
        v(random_matrix<T>(stream, rng, tokens(), s.channels * s.width)),
        d_z(random_matrix<T>(stream, rng, tokens(), s.channels * s.width)),
        z(stream, tokens(), s.channels * s.width),
        d_v(stream, tokens(), s.channels * s.width),
        write(random_matrix<float>(stream, rng, tokens(), gates(), 0.2, 1)),
        read(random_matrix<float>(stream, rng, tokens(), gates(), 0.2, 1)),
        clock(random_matrix<float>(stream, rng, tokens(), gates(), 0.01, 0.1)),
        entering(random_matrix<float>(stream, rng, s.sequences, state())),
        leaving(stream, s.sequences, state()),
        d_leaving(random_matrix<float>(stream, rng, s.sequences, state())),
        boundary(stream, s.sequences * scan_chunks(s.length), state()),
        d_write(stream, tokens(), gates()),
        d_read(stream, tokens(), gates()),
        d_clock(stream, tokens(), gates()),
        d_entering(stream, s.sequences, state()),
        entering_rows(pointers_to(stream, entering.view())),
        leaving_rows(pointers_to(stream, leaving.view())) {
    for (const double mean : {-4.0, 0.0, 0.0, 0.0, 0.5})
      tables.push_back(random_matrix<float>(stream, rng, s.channels, s.modes, 1, mean));
    clear_sums(stream);
  }
  Index tokens() const { return s.sequences * s.length; }
  Index gates() const { return s.channels * s.modes; }
  Index state() const { return 2 * gates() * s.width; }
  // Gradients of the tables accumulate.
  void clear_sums(cuda::Stream& stream) {
    d_tables.clear();
    StridedMatrix<double> zero(s.channels, s.modes, 0);
    std::ranges::fill(zero.storage, 0.0);
    for (int i = 0; i < 5; ++i) d_tables.emplace_back(stream, s.channels, s.modes).set(zero);
  }
  Modes<const float> modes() const {
    return {tables[0].view(), tables[1].view(), tables[2].view(), tables[3].view(), tables[4].view()};
  }
  void forward(cuda::Stream& stream) {
    run(stream, SelectiveScanForward<T>{.sequences = s.sequences,
                                        .length = s.length,
                                        .width = s.width,
                                        .v = v.view(),
                                        .write = write.view(),
                                        .read = read.view(),
                                        .clock = clock.view(),
                                        .modes = modes(),
                                        .entering = {entering_rows.data(), s.sequences},
                                        .z = z.view(),
                                        .boundary = boundary.view(),
                                        .leaving = leaving_rows.view()});
  }
  void backward(cuda::Stream& stream) {
    clear_sums(stream);
    run(stream, SelectiveScanBackward<T>{.sequences = s.sequences,
                                         .length = s.length,
                                         .width = s.width,
                                         .v = v.view(),
                                         .write = write.view(),
                                         .read = read.view(),
                                         .clock = clock.view(),
                                         .modes = modes(),
                                         .boundary = boundary.view(),
                                         .d_z = d_z.view(),
                                         .d_leaving = d_leaving.view(),
                                         .d_v = d_v.view(),
                                         .d_write = d_write.view(),
                                         .d_read = d_read.view(),
                                         .d_clock = d_clock.view(),
                                         .d_modes = {d_tables[0].view(), d_tables[1].view(), d_tables[2].view(),
                                                     d_tables[3].view(), d_tables[4].view()},
                                         .d_entering = d_entering.view()});
  }
};

TYPED_TEST(TunedLaunch, Scan) {
  auto& stream = this->stream();
  for (const auto& size : {ScanSize{3, 601, 5, 7, 28}, ScanSize{1, 1100, 3, 8, 100}, ScanSize{2, 4099, 2, 5, 9}}) {
    Scan<TypeParam> scan(stream, size);
    this->expect_same_bits(
        "scan states", cuda::kCarryThreads, [&] { scan.forward(stream); },
        [&] { return std::tuple(scan.z.bits(), scan.boundary.bits(), scan.leaving.bits()); });
    this->expect_same_bits(
        "scan adjoints", cuda::kCarryThreads, [&] { scan.backward(stream); },
        [&] {
          std::vector<std::vector<std::byte>> all{scan.d_v.bits(), scan.d_write.bits(), scan.d_read.bits(),
                                                  scan.d_clock.bits(), scan.d_entering.bits()};
          for (auto& table : scan.d_tables) all.push_back(table.bits());
          return all;
        });
  }
}

// The state is advanced in place, by exactly one pass.
TYPED_TEST(TunedLaunch, ScanInPlace) {
  auto& stream = this->stream();
  Scan<TypeParam> scan(stream, {2, 1030, 3, 8, 28});
  const auto biases = random_matrix<float>(stream, scan.rng, 1, scan.gates());
  const auto blend = random_matrix<float>(stream, scan.rng, 1, scan.s.channels);
  StridedMatrix<double> start(scan.s.sequences, scan.state(), 0),
      values(scan.tokens(), scan.s.channels * scan.s.width, 0);
  start.normal(scan.rng);
  values.normal(scan.rng);
  std::vector<StridedMatrix<double>> logits(3, StridedMatrix<double>(scan.tokens(), scan.gates(), 0));
  std::vector<DeviceMatrix<TypeParam>> gpu_logits;
  for (auto& one : logits) {
    one.normal(scan.rng);
    gpu_logits.emplace_back(stream, scan.tokens(), scan.gates());
  }
  const auto mix = [&] {
    // The unfused scan overwrites its inputs.
    scan.entering.set(start);
    scan.v.set(values);
    for (std::size_t i = 0; i < logits.size(); ++i) gpu_logits[i].set(logits[i]);
    const Vector<const float> bias{biases.view().data, scan.gates()};
    run(stream, SelectiveMix<TypeParam>{.sequences = scan.s.sequences,
                                        .length = scan.s.length,
                                        .width = scan.s.width,
                                        .v0 = scan.v.view(),
                                        .write_logits = gpu_logits[0].view(),
                                        .read_logits = gpu_logits[1].view(),
                                        .clock_logits = gpu_logits[2].view(),
                                        .write_bias = bias,
                                        .read_bias = bias,
                                        .clock_bias = bias,
                                        .blend = {blend.view().data, scan.s.channels},
                                        .eps = 1e-6,
                                        .modes = scan.modes(),
                                        .entering = {scan.entering_rows.data(), scan.s.sequences},
                                        .z = scan.z.view(),
                                        .leaving = scan.entering_rows.view()});
  };
  this->expect_same_bits("scan states", cuda::kCarryThreads, mix,
                         [&] { return std::pair(scan.z.bits(), scan.entering.bits()); });
}

struct AttentionSize {
  Index sequences, queries, past, heads, kv_heads, head_dim, window;
};

TYPED_TEST(TunedLaunch, Attention) {
  using T = TypeParam;
  auto& stream = this->stream();
  for (const auto& s : {AttentionSize{3, 2500, 0, 8, 4, 64, 999}, AttentionSize{1, 1501, 700, 12, 12, 72, 5000},
                        AttentionSize{3, 7, 3001, 6, 2, 64, 1200}}) {
    Rng rng(3);
    const Index rows = s.sequences * s.queries, keys = s.sequences * (s.past + s.queries);
    const auto q = random_matrix<T>(stream, rng, rows, s.heads * s.head_dim),
               k = random_matrix<T>(stream, rng, keys, s.kv_heads * s.head_dim),
               v = random_matrix<T>(stream, rng, keys, s.kv_heads * s.head_dim),
               d_out = random_matrix<T>(stream, rng, rows, s.heads * s.head_dim);
    DeviceMatrix<T> out(stream, rows, s.heads * s.head_dim), d_q(stream, rows, s.heads * s.head_dim),
        d_k(stream, keys, s.kv_heads * s.head_dim), d_v(stream, keys, s.kv_heads * s.head_dim);
    DeviceMatrix<float> log_sum(stream, rows, s.heads);
    const auto forward = [&] {
      run(stream, WindowAttentionForward<T>{s.sequences, s.queries, s.past, s.head_dim, s.window, q.view(), k.view(),
                                            v.view(), out.view(), log_sum.view()});
    };
    const auto forward_bits = [&] { return std::pair(out.bits(), log_sum.bits()); };
    if (s.queries < 9) {
      // Shares of 128 rows.
      this->expect_same_bits("attention rows", cuda::row_block_candidates((s.window + 127) / 128), forward,
                             forward_bits);
      continue;
    }
    const bool mma = sizeof(T) == 2 && s.head_dim == 64;
    this->expect_same_bits(mma ? "attention" : "attention tiles", cuda::kCacheMegabytes, forward, forward_bits);
    if (s.past > 0) continue;
    const auto backward = [&] {
      run(stream,
          WindowAttentionBackward<T>{s.sequences, s.queries, s.head_dim, s.window, q.view(), k.view(), v.view(),
                                     out.view(), log_sum.view(), d_out.view(), d_q.view(), d_k.view(), d_v.view()});
    };
    const auto backward_bits = [&] { return std::tuple(d_q.bits(), d_k.bits(), d_v.bits()); };
    this->expect_same_bits(mma ? "attention backward" : "attention tiles backward", cuda::kCacheMegabytes, backward,
                           backward_bits);
    if (mma) this->expect_same_bits("attention kept", cuda::kKeptMegabytes, backward, backward_bits);
  }
}

struct StepSize {
  Index sequences, heads, kv_heads, window, rows;
  bool coded = false;
};

TYPED_TEST(TunedLaunch, WindowStep) {
  using T = TypeParam;
  constexpr Index kHeadDim = 64;
  auto& stream = this->stream();
  for (const auto& s : {StepSize{3, 6, 2, 1000, 1003}, StepSize{5, 3, 3, 777, 777}, StepSize{2, 8, 1, 3000, 0},
                        StepSize{3, 4, 2, 900, 905, true}}) {
    Rng rng(11);
    const Index width = s.kv_heads * kHeadDim, rows = s.rows == 0 ? s.window : s.rows;
    const Index columns = s.coded ? coded_row_bytes(width, kHeadDim) / Index{sizeof(T)} : width;
    const auto q = random_matrix<T>(stream, rng, s.sequences, s.heads * kHeadDim),
               k = random_matrix<T>(stream, rng, s.sequences, width),
               v = random_matrix<T>(stream, rng, s.sequences, width);
    DeviceMatrix<T> out(stream, s.sequences, s.heads * kHeadDim);
    // Dense caches of all sequences; the coded ones begin as zeros.
    const Index cache = rows * columns;
    std::vector<T> numbers;
    for (Index i = 0; i < s.sequences * cache; ++i)
      numbers.push_back(T(s.coded ? 0.0f : static_cast<float>(rng.uniform() * 2 - 1)));
    Array<T> keys(Device::Cuda, std::ssize(numbers), "a test"), values(Device::Cuda, std::ssize(numbers), "a test");
    const auto key_rows = pointers_to(stream, dense(keys.data(), s.sequences, cache)),
               value_rows = pointers_to(stream, dense(values.data(), s.sequences, cache));
    // The first sequence is at its beginning, the last one beyond the window.
    std::vector<Index> positions;
    for (Index b = 0; b < s.sequences; ++b)
      positions.push_back(s.rows == 0 ? rows - 1 - b : b * (s.window + 50) / (s.sequences - 1));
    Array<Index> there(Device::Cuda, s.sequences, "a test");
    stream.copy(there.data(), positions.data(), positions.size() * sizeof(Index));
    const auto step = [&] {
      for (auto* caches : {&keys, &values}) stream.copy(caches->data(), numbers.data(), caches->bytes());
      run(stream, WindowStep<T>{.head_dim = kHeadDim,
                                .window = s.window,
                                .rows = s.rows,
                                .longest = s.window + 51,
                                .q = q.view(),
                                .k = k.view(),
                                .v = v.view(),
                                .keys = key_rows.view(),
                                .values = value_rows.view(),
                                .positions = there.view(),
                                .out = out.view(),
                                .coded = s.coded});
    };
    const auto bits = [&] {
      std::vector<std::byte> caches(2 * keys.bytes());
      stream.copy(caches.data(), keys.data(), keys.bytes());
      stream.copy(caches.data() + keys.bytes(), values.data(), keys.bytes());
      return std::pair(out.bits(), caches);
    };
    this->expect_same_bits(s.coded ? "coded window step" : "window step",
                           cuda::row_block_candidates((s.window + 127) / 128), step, bits);
  }
}

class TunedParameter : public CudaTest {};

TEST_F(TunedParameter, AFingerprintSeesEveryBitAndNoPadding) {
  Rng rng(1);
  StridedMatrix<double> values(37, 29, 0);
  values.normal(rng);
  DeviceMatrix<BFloat16> narrow(stream(), 37, 29), padded(stream(), 37, 29, Layout::Misaligned);
  DeviceMatrix<float> wide(stream(), 3, 5);
  narrow.set(values);
  padded.set(values);
  const auto of = [&](const Matrix<BFloat16>& m) {
    const cuda::Written both[] = {cuda::written(m), cuda::written(wide.view())};
    return cuda::fingerprint(stream(), both);
  };
  const auto wanted = of(narrow.view());
  EXPECT_EQ(of(narrow.view()), wanted);
  EXPECT_EQ(of(padded.view()), wanted);
  for (const auto& [r, c] : {std::pair<Index, Index>{0, 0}, {36, 28}, {17, 3}}) {
    const double before = values.view(r, c);
    values.view(r, c) = before == 0.5 ? 0.25 : 0.5;
    narrow.set(values);
    EXPECT_NE(of(narrow.view()), wanted) << r << ", " << c;
    values.view(r, c) = before;
  }
  std::swap(values.view(3, 4), values.view(4, 3));
  narrow.set(values);
  EXPECT_NE(of(narrow.view()), wanted) << "two elements swapped";
}

// The wrong candidate is the cheapest: it copies one number, to the wrong place.
TEST_F(TunedParameter, AWrongCandidateIsNeverTaken) {
  constexpr Index kCandidates[] = {3, 0, 1};
  Rng rng(1);
  const auto from = random_matrix<float>(stream(), rng, 100, 64);
  DeviceMatrix<float> to(stream(), 100, 64);
  const auto copy = [&](Index times) {
    if (times == 0) return stream().copy(to.view().data, from.view().data + 1, sizeof(float));
    const auto bytes = static_cast<std::size_t>(from.view().stride * from.view().rows - 8) * sizeof(float);
    for (Index i = 0; i < times; ++i) stream().copy(to.view().data, from.view().data, bytes);
  };
  ::testing::internal::CaptureStderr();
  const Index sizes[] = {100, 64};
  const cuda::Written results[] = {cuda::written(to.view())};
  const Index taken = cuda::tuned_parameter(stream(), "copy", sizes, kCandidates, results, copy);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("copy 100x64: 0 is not used"), std::string::npos);
  EXPECT_NE(taken, 0);
  EXPECT_EQ(stream().choices()["copy 100x64"], std::to_string(taken));
}

TEST_F(TunedParameter, ARecordingTriesNothing) {
  constexpr Index kCandidates[] = {3, 1};
  DeviceMatrix<float> to(stream(), 8, 8);
  const Index sizes[] = {8};
  const cuda::Written results[] = {cuda::written(to.view())};
  int trials = 0;
  Index taken = 0;
  const auto ask = [&] {
    taken = cuda::tuned_parameter(stream(), "nothing", sizes, kCandidates, results, [&](Index) { ++trials; });
  };
  const cuda::Graph graph(stream(), ask);
  EXPECT_EQ(taken, 3);
  EXPECT_EQ(trials, 0);
  EXPECT_TRUE(stream().choices().empty());
  ask();
  EXPECT_GT(trials, 0);
  stream().choices()["nothing 8"] = "1";
  const cuda::Graph again(stream(), ask);
  EXPECT_EQ(taken, 1) << "a stored choice is taken";
}

}  // namespace
}  // namespace essh
