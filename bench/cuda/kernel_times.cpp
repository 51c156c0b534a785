// Times of the CUDA kernels at training shapes, in one table: kernel, shape, microseconds, rate relative to the
// roofline.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "essh/base/rng.h"
#include "essh/device/cuda/check.h"
#include "essh/kernels/column_squares.h"
#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/distillation.h"
#include "essh/kernels/embedding.h"
#include "essh/kernels/gates.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/rms_norm.h"
#include "essh/kernels/rope.h"
#include "essh/kernels/row_pointers.h"
#include "essh/kernels/selective_scan.h"
#include "essh/kernels/swiglu.h"
#include "essh/kernels/value_blend.h"
#include "essh/kernels/window_attention.h"
#include "essh/kernels/window_step.h"

namespace essh {
namespace {

using cuda::check;
using B = BFloat16;

class Bench {
 public:
  Bench(cuda::Stream& stream, std::string_view filter) : stream_(stream), filter_(filter) {
    check(cudaEventCreate(&start_), "event");
    check(cudaEventCreate(&end_), "event");
  }

  // `work` is in bytes or FLOPs.
  void measure(std::string name, double work, const char* unit, const std::function<void()>& body) {
    if (name.find(filter_) == std::string::npos) return;
    for (int i = 0; i < 3; ++i) body();
    double best = 1e9, total = 0;
    constexpr int kRounds = 10;
    for (int round = 0; round < kRounds; ++round) {
      check(cudaEventRecord(start_, stream_.handle()), "event");
      body();
      check(cudaEventRecord(end_, stream_.handle()), "event");
      check(cudaEventSynchronize(end_), name.c_str());
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start_, end_), "event");
      best = std::min(best, static_cast<double>(ms));
      total += static_cast<double>(ms);
    }
    fmt::print("{:44} {:9.1f} us  (mean {:9.1f})  {:7.2f} {}\n", name, best * 1e3, total / kRounds * 1e3,
               work / best / 1e9, unit);
    std::fflush(stdout);
  }

  template <class T>
  Matrix<T> matrix(Index rows, Index cols) {
    const auto m = arena_.matrix<T>(rows, cols);
    check(cudaMemsetAsync(m.data, 0x3c, static_cast<std::size_t>(rows * cols) * sizeof(T), stream_.handle()), "fill");
    return m;
  }
  // Values like a model's: with equal values, tensor cores draw less power and softmax takes other branches.
  Matrix<B> random(Index rows, Index cols) {
    if (drawn_.empty()) {
      Rng rng(1);
      for (int i = 0; i < 1 << 20; ++i) drawn_.push_back(B(static_cast<float>(rng.normal())));
    }
    const auto m = arena_.matrix<B>(rows, cols);
    const auto size = static_cast<std::size_t>(rows * cols);
    for (std::size_t done = 0; done < size; done += drawn_.size())
      stream_.copy(m.data + done, drawn_.data(), std::min(drawn_.size(), size - done) * sizeof(B));
    return m;
  }
  template <class T>
  Vector<T> vector(Index size) {
    return {matrix<T>(1, size).data, size};
  }
  void reset() { arena_.release(); }

 private:
  cuda::Stream& stream_;
  std::string_view filter_;
  std::vector<B> drawn_;
  Arena arena_{Device::Cuda};
  cudaEvent_t start_{}, end_{};
};

struct Shape {
  const char* name;
  Index sequences, length, width, channels, value_width, ffn, vocabulary, heads;
};

void block(Bench& bench, cuda::Stream& stream, const Shape& s) {
  const Index tokens = s.sequences * s.length, modes = 8, rows = s.channels * modes,
              values = s.channels * s.value_width;
  const auto n = [&](const char* what) { return fmt::format("{} {}", s.name, what); };
  const auto bytes = [&](Index elements, Index size) { return static_cast<double>(elements * size); };
  const auto products = [&](const char* what, Index in, Index out) {
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
    bench.reset();
    const auto x = bench.matrix<B>(tokens, in), y = bench.matrix<B>(tokens, out), w = bench.matrix<B>(out, in);
    const auto g = bench.matrix<float>(out, in);
    const auto name = fmt::format("{} {}x{}", what, in, out);
    bench.measure(n((name + " forward").c_str()), flops, "TFLOP/s",
                  [&] { run(stream, Gemm<B>{.a = x, .b = w, .c = y, .transpose_b = Transpose::Yes}); });
    bench.measure(n((name + " d_input").c_str()), flops, "TFLOP/s",
                  [&] { run(stream, Gemm<B>{.a = y, .b = w, .c = x}); });
    bench.measure(n((name + " d_weight").c_str()), flops, "TFLOP/s", [&] {
      run(stream, Gemm<B, float>{.a = y, .b = x, .c = g, .transpose_a = Transpose::Yes, .beta = 1});
    });
  };
  products("in_proj", s.width, values + 3 * rows);
  products("out_proj", values, s.width);
  products("gate_up", s.width, 2 * s.ffn);
  products("down", s.ffn, s.width);
  bench.reset();
  {
    const auto x = bench.matrix<B>(tokens, s.width), y = bench.matrix<B>(tokens, s.width),
               d = bench.matrix<B>(tokens, s.width);
    const auto gain = bench.vector<float>(s.width), inverse = bench.vector<float>(tokens),
               d_gain = bench.vector<float>(s.width);
    bench.measure(n("rms_norm forward"), bytes(tokens * s.width, 4), "TB/s", [&] {
      run(stream, RmsNormForward<B>{x, gain, y, inverse, 1e-5});
    });
    bench.measure(n("rms_norm backward"), bytes(tokens * s.width, 8), "TB/s", [&] {
      run(stream, RmsNormBackward<B>{x, gain, inverse, y, d, d_gain});
    });
    const auto wide_x = bench.matrix<float>(tokens, s.width), wide_d = bench.matrix<float>(tokens, s.width);
    bench.measure(n("rms_norm forward, float32 residual"), bytes(tokens * s.width, 6), "TB/s", [&] {
      run(stream, RmsNormForward<B, float>{wide_x, gain, y, inverse, 1e-5});
    });
    bench.measure(n("rms_norm backward, float32 residual"), bytes(tokens * s.width, 16), "TB/s", [&] {
      run(stream, RmsNormBackward<B, float>{wide_x, gain, inverse, y, wide_d, d_gain, d});
    });
  }
  bench.reset();
  {
    const auto both = bench.matrix<B>(tokens, 2 * s.ffn), hidden = bench.matrix<B>(tokens, s.ffn),
               d = bench.matrix<B>(tokens, s.ffn);
    const auto gate = both.left(s.ffn), up = both.block(0, tokens, s.ffn, s.ffn);
    bench.measure(n("swiglu forward"), bytes(tokens * s.ffn, 6), "TB/s", [&] {
      run(stream, SwigluForward<B>{gate, up, hidden});
    });
    bench.measure(n("swiglu backward"), bytes(tokens * s.ffn, 12), "TB/s", [&] {
      run(stream, SwigluBackward<B>{gate, up, d, gate, up, hidden});
    });
    const auto sums = bench.vector<double>(s.ffn);
    bench.measure(n("column_squares"), bytes(tokens * s.ffn, 2), "TB/s", [&] {
      run(stream, ColumnSquares<B>{hidden, sums});
    });
  }
  bench.reset();
  {
    const auto projection = bench.matrix<B>(tokens, values + 3 * rows),
               d_projection = bench.matrix<B>(tokens, values + 3 * rows);
    const auto part = [&](Matrix<B> m, Index i) { return m.block(0, tokens, values + i * rows, rows); };
    const auto w = bench.matrix<float>(tokens, rows), r = bench.matrix<float>(tokens, rows),
               c = bench.matrix<float>(tokens, rows);
    const auto dw = bench.matrix<float>(tokens, rows), dr = bench.matrix<float>(tokens, rows),
               dc = bench.matrix<float>(tokens, rows);
    const auto bias = bench.vector<float>(rows);
    bench.measure(n("gates forward"), bytes(tokens * rows, 18), "TB/s", [&] {
      run(stream,
          GatesForward<B>{part(projection, 0), part(projection, 1), part(projection, 2), bias, bias, bias, w, r, c});
    });
    const auto v0 = projection.left(values), v = bench.matrix<B>(tokens, values), z = bench.matrix<B>(tokens, values);
    const auto blend = bench.vector<float>(s.channels), d_blend = bench.vector<float>(s.channels);
    bench.measure(n("value_blend forward"), bytes(tokens * values, 4), "TB/s", [&] {
      run(stream, ValueBlendForward<B>{v0, blend, v, s.value_width, 1e-6});
    });
    const Index state = 2 * s.channels * modes * s.value_width;
    const auto boundary = bench.matrix<float>(s.sequences * scan_chunks(s.length), state);
    const auto table = [&] { return bench.matrix<float>(s.channels, modes); };
    const Modes<float> tables{table(), table(), table(), table(), table()},
        d_tables{table(), table(), table(), table(), table()};
    const double scan_work = static_cast<double>(tokens * s.channels) *
                             static_cast<double>(32 * 16 + 32 * s.value_width + 32 * s.value_width) * 2;
    bench.measure(n("scan forward"), scan_work, "TFLOP/s", [&] {
      run(stream, SelectiveScanForward<B>{.sequences = s.sequences,
                                          .length = s.length,
                                          .width = s.value_width,
                                          .v = v,
                                          .write = w,
                                          .read = r,
                                          .clock = c,
                                          .modes = tables,
                                          .entering = {},
                                          .z = z,
                                          .boundary = boundary,
                                          .leaving = {}});
    });
    bench.measure(n("scan backward"), 3 * scan_work, "TFLOP/s", [&] {
      run(stream, SelectiveScanBackward<B>{.sequences = s.sequences,
                                           .length = s.length,
                                           .width = s.value_width,
                                           .v = v,
                                           .write = w,
                                           .read = r,
                                           .clock = c,
                                           .modes = tables,
                                           .boundary = boundary,
                                           .d_z = z,
                                           .d_leaving = {},
                                           .d_v = d_projection.left(values),
                                           .d_write = dw,
                                           .d_read = dr,
                                           .d_clock = dc,
                                           .d_modes = d_tables,
                                           .d_entering = {}});
    });
    bench.measure(n("value_blend backward"), bytes(tokens * values, 6), "TB/s", [&] {
      run(stream, ValueBlendBackward<B>{v0, blend, d_projection.left(values), d_projection.left(values), d_blend,
                                        s.value_width, 1e-6});
    });
    bench.measure(n("gates backward"), bytes(tokens * rows, 30), "TB/s", [&] {
      run(stream, GatesBackward<B>{w, r, c, dw, dr, dc, part(d_projection, 0), part(d_projection, 1),
                                   part(d_projection, 2), bias, bias, bias});
    });
  }
  bench.reset();
  {
    const auto qkv = bench.matrix<B>(tokens, 3 * s.width), d_qkv = bench.matrix<B>(tokens, 3 * s.width),
               out = bench.matrix<B>(tokens, s.width), d_out = bench.matrix<B>(tokens, s.width);
    const auto log_sum = bench.matrix<float>(tokens, s.heads);
    const auto third = [&](Matrix<B> m, Index i) { return m.block(0, tokens, i * s.width, s.width); };
    const double flops =
        2.0 * static_cast<double>(tokens) * static_cast<double>(s.length) * static_cast<double>(s.width);
    bench.measure(n("rope"), bytes(tokens * s.width, 4), "TB/s", [&] {
      run(stream, Rope<B>{third(qkv, 0), s.length, 64, {}, 10000, Rotation::Forward});
    });
    bench.measure(n("attention forward"), flops, "TFLOP/s", [&] {
      run(stream, WindowAttentionForward<B>{s.sequences, s.length, 0, 64, 2048, third(qkv, 0), third(qkv, 1),
                                            third(qkv, 2), out, log_sum});
    });
    bench.measure(n("attention backward"), 2.5 * flops, "TFLOP/s", [&] {
      run(stream,
          WindowAttentionBackward<B>{s.sequences, s.length, 64, 2048, third(qkv, 0), third(qkv, 1), third(qkv, 2), out,
                                     log_sum, d_out, third(d_qkv, 0), third(d_qkv, 1), third(d_qkv, 2)});
    });
  }
  bench.reset();
  {
    const Index chunk = 4096;
    const auto logits = bench.matrix<B>(chunk, s.vocabulary), teacher = bench.matrix<B>(chunk, s.vocabulary);
    const auto hidden = bench.matrix<B>(chunk, s.width), table = bench.matrix<B>(s.vocabulary, s.width);
    const auto d_table = bench.matrix<float>(s.vocabulary, s.width);
    const auto loss = bench.vector<float>(chunk), divergence = bench.vector<float>(chunk);
    const auto targets = bench.vector<std::int32_t>(chunk);
    check(cudaMemsetAsync(targets.data, 0, static_cast<std::size_t>(chunk) * 4, stream.handle()), "targets");
    const double flops =
        2.0 * static_cast<double>(chunk) * static_cast<double>(s.vocabulary) * static_cast<double>(s.width);
    bench.measure(n("head forward"), flops, "TFLOP/s",
                  [&] { run(stream, Gemm<B>{.a = hidden, .b = table, .c = logits, .transpose_b = Transpose::Yes}); });
    bench.measure(n("head d_hidden"), flops, "TFLOP/s",
                  [&] { run(stream, Gemm<B>{.a = logits, .b = table, .c = hidden}); });
    bench.measure(n("head d_table"), flops, "TFLOP/s", [&] {
      run(stream, Gemm<B, float>{.a = logits, .b = hidden, .c = d_table, .transpose_a = Transpose::Yes, .beta = 1});
    });
    bench.measure(n("cross_entropy"), bytes(chunk * s.vocabulary, 6), "TB/s", [&] {
      run(stream, CrossEntropy<B>{logits, targets, loss, logits, 1});
    });
    bench.measure(n("distillation"), bytes(chunk * s.vocabulary, 14), "TB/s", [&] {
      run(stream, Distillation<B>{logits, teacher, targets, loss, divergence, logits, 1, 0.5, 0, 1});
    });
    const auto ids = bench.vector<std::int32_t>(tokens);
    std::vector<std::int32_t> host(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int32_t>((i * i * 7919) % 9973);
    stream.copy(ids.data, host.data(), host.size() * 4);
    const auto d_x = bench.matrix<B>(tokens, s.width);
    bench.measure(n("embedding backward"), bytes(tokens * s.width, 2), "TB/s", [&] {
      run(stream, EmbeddingBackward<B>{ids, d_x, d_table});
    });
  }
}

// Attention of prompts and of decoding, with full windows.
void attention(Bench& bench, cuda::Stream& stream, const Shape& s) {
  const Index window = 2048, past = window - 1;
  for (const Index queries : {1, 128, 2048, 8192}) {
    bench.reset();
    const auto q = bench.matrix<B>(queries, s.width), out = bench.matrix<B>(queries, s.width),
               k = bench.matrix<B>(past + queries, s.width), v = bench.matrix<B>(past + queries, s.width);
    bench.measure(fmt::format("{} attention, {} queries after {}", s.name, queries, past),
                  4.0 * static_cast<double>(queries * window) * static_cast<double>(s.width), "TFLOP/s", [&] {
                    run(stream, WindowAttentionForward<B>{1, queries, past, 64, window, q, k, v, out, {}});
                  });
  }
  for (const Index sequences : {1, 16, 128, 512}) {
    bench.reset();
    const auto q = bench.matrix<B>(sequences, s.width), k = bench.matrix<B>(sequences, s.width),
               v = bench.matrix<B>(sequences, s.width), out = bench.matrix<B>(sequences, s.width),
               keys = bench.matrix<B>(sequences, window * s.width),
               values = bench.matrix<B>(sequences, window * s.width);
    const auto positions = bench.vector<Index>(sequences);
    const std::vector<Index> host(static_cast<std::size_t>(sequences), 3 * window);
    stream.copy(positions.data, host.data(), host.size() * sizeof(Index));
    const auto rows = [&](Matrix<B> caches) {
      const auto pointers = bench.vector<B*>(sequences);
      run(stream, RowPointers<B>{caches, pointers});
      return pointers;
    };
    const auto key_rows = rows(keys), value_rows = rows(values);
    bench.measure(
        fmt::format("{} window step, {} sequences", s.name, sequences),
        2.0 * static_cast<double>(keys.rows * keys.cols) * sizeof(B), "TB/s", [&] {
          run(stream, WindowStep<B>{64, window, window, 3 * window + 1, q, k, v, key_rows, value_rows, positions, out});
        });
  }
}

// Causal attention with 64-dimensional heads. FLOPs of visible pairs only; backward counts 2.5 times the forward pass.
void causal_attention(Bench& bench, cuda::Stream& stream, Index sequences, Index length, Index heads, Index kv_heads) {
  constexpr Index kWindow = Index{1} << 40;
  bench.reset();
  const Index tokens = sequences * length;
  const auto q = bench.random(tokens, heads * 64), d_out = bench.random(tokens, heads * 64),
             k = bench.random(tokens, kv_heads * 64), v = bench.random(tokens, kv_heads * 64);
  const auto out = bench.matrix<B>(tokens, heads * 64), d_q = bench.matrix<B>(tokens, heads * 64),
             d_k = bench.matrix<B>(tokens, kv_heads * 64), d_v = bench.matrix<B>(tokens, kv_heads * 64);
  const auto log_sum = bench.matrix<float>(tokens, heads);
  const auto forward = [&] {
    run(stream, WindowAttentionForward<B>{sequences, length, 0, 64, kWindow, q, k, v, out, log_sum});
  };
  const auto backward = [&] {
    run(stream,
        WindowAttentionBackward<B>{sequences, length, 64, kWindow, q, k, v, out, log_sum, d_out, d_q, d_k, d_v});
  };
  forward();
  const auto n = [&](const char* what) {
    return fmt::format("causal {} x {}, {}:{} heads {}", sequences, length, heads, kv_heads, what);
  };
  const double flops = 2.0 * static_cast<double>(tokens * (length + 1)) * static_cast<double>(heads * 64);
  bench.measure(n("forward"), flops, "TFLOP/s", forward);
  bench.measure(n("backward"), 2.5 * flops, "TFLOP/s", backward);
  bench.measure(n("both"), 3.5 * flops, "TFLOP/s", [&] {
    forward();
    backward();
  });
}

// One token of each sequence against growing caches.
void causal_step(Bench& bench, cuda::Stream& stream, Index sequences, Index past, Index heads, Index kv_heads) {
  bench.reset();
  const Index width = kv_heads * 64;
  const auto q = bench.matrix<B>(sequences, heads * 64), out = bench.matrix<B>(sequences, heads * 64),
             k = bench.matrix<B>(sequences, width), v = bench.matrix<B>(sequences, width),
             keys = bench.matrix<B>(sequences, (past + 1) * width),
             values = bench.matrix<B>(sequences, (past + 1) * width);
  const auto positions = bench.vector<Index>(sequences);
  const std::vector<Index> host(static_cast<std::size_t>(sequences), past);
  stream.copy(positions.data, host.data(), host.size() * sizeof(Index));
  const auto key_rows = bench.vector<B*>(sequences), value_rows = bench.vector<B*>(sequences);
  run(stream, RowPointers<B>{keys, key_rows});
  run(stream, RowPointers<B>{values, value_rows});
  bench.measure(
      fmt::format("causal step, {} after {}, {}:{} heads", sequences, past, heads, kv_heads),
      2.0 * static_cast<double>(keys.rows * keys.cols) * sizeof(B), "TB/s", [&] {
        run(stream, WindowStep<B>{64, Index{1} << 40, 0, past + 1, q, k, v, key_rows, value_rows, positions, out});
      });
}

}  // namespace
}  // namespace essh

int main(int argc, char** argv) {
  using namespace essh;
  try {
    cuda::Stream stream;
    fmt::print("{}\n", stream.description());
    Bench bench(stream, argc > 1 ? argv[1] : "");
    for (const auto& shape : {Shape{"370m", 8, 2048, 896, 32, 28, 4608, 50304, 14},
                              Shape{"1.5b", 4, 2048, 2048, 32, 64, 5632, 128256, 32}}) {
      block(bench, stream, shape);
      attention(bench, stream, shape);
    }
    causal_attention(bench, stream, 8, 2048, 14, 14);
    causal_attention(bench, stream, 8, 2048, 14, 2);
    causal_attention(bench, stream, 2, 8192, 14, 14);
    for (const Index sequences : {1, 16, 128, 512}) {
      causal_step(bench, stream, sequences, 2047, 32, 32);
      causal_step(bench, stream, sequences, 2047, 32, 8);
      causal_step(bench, stream, sequences, 16383, 32, 8);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
