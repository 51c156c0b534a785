#include "essh/kernels/window_step.h"

#include "tests/kernels/cuda/device_matrix.h"

namespace essh {
namespace {

struct StepCase {
  Index sequences, heads, kv_heads, head_dim, window;
  Index rows = window;  // rows of the rings; 0: growing caches
  Index cols() const { return heads * head_dim; }
  Index kv_cols() const { return kv_heads * head_dim; }
};

// One cache per sequence, each in separate memory on both devices.
template <class T>
struct Caches {
  std::vector<StridedMatrix<double>> host;
  std::vector<DeviceMatrix<T>> device;
  std::vector<double*> host_pointers;
  Array<T*> device_pointers;

  // Every third cache is misaligned in any layout.
  Caches(cuda::Stream& stream, Index sequences, Index rows, Index cols, Layout layout, Rng& rng, double spread)
      : device_pointers(Device::Cuda, sequences, "a test") {
    std::vector<T*> pointers;
    host.reserve(static_cast<std::size_t>(sequences));
    device.reserve(static_cast<std::size_t>(sequences));
    for (Index b = 0; b < sequences; ++b) {
      const Index offset = layout == Layout::Misaligned || b % 3 == 2 ? 1 : 0;
      auto& numbers = host.emplace_back(1, offset + rows * cols, 0).normal(rng, spread);
      pointers.push_back(device.emplace_back(stream, 1, offset + rows * cols).set(numbers).view().data + offset);
      host_pointers.push_back(numbers.view.data + offset);
    }
    stream.copy(device_pointers.data(), pointers.data(), pointers.size() * sizeof(T*));
  }
};

// A few sequences at different positions, stepping on the GPU in T and on the CPU in double.
template <class T>
struct Decoding {
  StepCase s;
  Index longest;
  std::vector<Index> positions;
  Rng rng{7};
  StridedMatrix<double> q, k, v, out;
  DeviceMatrix<T> gpu_q, gpu_k, gpu_v, gpu_out;
  Caches<T> keys, values;
  Array<Index> gpu_positions;

  Decoding(cuda::Stream& stream, const StepCase& shape, Layout layout, Index steps = 8)
      : s(shape),
        longest(s.sequences * (std::min<Index>(s.window, 600) / 2 + 1) + steps),
        q(s.sequences, s.cols(), 0),
        k(s.sequences, s.kv_cols(), 0),
        v(k),
        out(q),
        gpu_q(stream, s.sequences, s.cols(), layout),
        gpu_k(stream, s.sequences, s.kv_cols(), layout),
        gpu_v(stream, s.sequences, s.kv_cols(), layout),
        gpu_out(stream, s.sequences, s.cols(), layout),
        keys(stream, s.sequences, s.rows == 0 ? longest : s.rows, s.kv_cols(), layout, rng, 1.5),
        values(stream, s.sequences, s.rows == 0 ? longest : s.rows, s.kv_cols(), layout, rng, 1.0),
        gpu_positions(Device::Cuda, s.sequences, "a test") {
    for (Index b = 0; b < s.sequences; ++b) positions.push_back(b * (std::min<Index>(s.window, 600) / 2 + 1));
  }
  void draw(cuda::Stream& stream) {
    gpu_q.set(q.normal(rng, 1.5));
    gpu_k.set(k.normal(rng, 1.5));
    gpu_v.set(v.normal(rng));
    place(stream);
  }
  void place(cuda::Stream& stream) const {
    stream.copy(gpu_positions.data(), positions.data(), positions.size() * sizeof(Index));
  }
  // Steps the last `count` sequences; 0 means all.
  void step_gpu(cuda::Stream& stream, Index count = 0) const {
    const Index first = count == 0 ? 0 : s.sequences - count, many = s.sequences - first;
    run(stream, WindowStep<T>{.head_dim = s.head_dim,
                              .window = s.window,
                              .rows = s.rows,
                              .longest = longest,
                              .q = gpu_q.view().middle(first, many),
                              .k = gpu_k.view().middle(first, many),
                              .v = gpu_v.view().middle(first, many),
                              .keys = keys.device_pointers.view(first, many),
                              .values = values.device_pointers.view(first, many),
                              .positions = gpu_positions.view(first, many),
                              .out = gpu_out.view().middle(first, many)});
  }
  void step_cpu(cpu::Stream& stream) {
    run(stream, WindowStep<double>{.head_dim = s.head_dim,
                                   .window = s.window,
                                   .rows = s.rows,
                                   .longest = longest,
                                   .q = q.view,
                                   .k = k.view,
                                   .v = v.view,
                                   .keys = {keys.host_pointers.data(), s.sequences},
                                   .values = {values.host_pointers.data(), s.sequences},
                                   .positions = {positions.data(), s.sequences},
                                   .out = out.view});
    for (Index& position : positions) ++position;
  }
  void expect_agreement() {
    EXPECT_LE(relative_error(gpu_out.get(), out, s.head_dim), kCudaTolerance<T>)
        << s.sequences << " sequences, " << s.heads << ":" << s.kv_heads << " heads of " << s.head_dim << ", window "
        << s.window << ", rows " << s.rows;
    for (auto* caches : {&keys, &values}) {
      for (std::size_t b = 0; b < caches->host.size(); ++b)
        EXPECT_EQ(caches->device[b].get().storage, caches->host[b].storage) << "cache " << b;
    }
  }
};

template <class T>
class CudaWindowStep : public CudaTest {};
TYPED_TEST_SUITE(CudaWindowStep, CudaTypes);

TYPED_TEST(CudaWindowStep, AgreesWithTheCpu) {
  cpu::Stream cpu;
  for (const Layout layout : {Layout::Aligned, Layout::Misaligned}) {
    for (const auto& s :
         {StepCase{1, 2, 2, 64, 300}, StepCase{3, 2, 2, 64, 5}, StepCase{4, 3, 3, 64, 129}, StepCase{3, 2, 2, 8, 40},
          StepCase{2, 2, 2, 40, 33}, StepCase{2, 1, 1, 128, 200}, StepCase{2, 2, 2, 64, 1}, StepCase{3, 4, 1, 64, 200},
          StepCase{3, 8, 2, 64, 300, 305}, StepCase{3, 14, 2, 64, 140, 150}, StepCase{3, 6, 2, 24, 40, 41},
          StepCase{4, 8, 2, 64, Index{1} << 40, 0}, StepCase{4, 2, 2, 64, 500, 0}, StepCase{2, 4, 2, 128, 100, 0}}) {
      if (!next_case()) continue;
      Decoding<TypeParam> d(this->stream(), s, layout);
      for (int step = 0; step < 8; ++step) {
        d.draw(this->stream());
        d.step_gpu(this->stream());
        d.step_cpu(cpu);
        d.expect_agreement();
      }
    }
  }
}

TYPED_TEST(CudaWindowStep, FullWindows) {
  cpu::Stream cpu;
  for (const auto& s : {StepCase{1, 14, 14, 64, 2048}, StepCase{64, 14, 14, 64, 512}, StepCase{3, 8, 2, 64, 9000}}) {
    Decoding<TypeParam> d(this->stream(), s, Layout::Aligned);
    for (auto& position : d.positions) position += s.window;
    d.longest += s.window;
    for (int step = 0; step < 2; ++step) {
      d.draw(this->stream());
      d.step_gpu(this->stream());
      d.step_cpu(cpu);
      d.expect_agreement();
    }
  }
}

TYPED_TEST(CudaWindowStep, OneRecordingServesEveryStep) {
  cpu::Stream cpu;
  for (const Index rows : {600, 0}) {
    Decoding<TypeParam> d(this->stream(), {2, 2, 2, 64, 600, rows}, Layout::Aligned);
    d.draw(this->stream());
    d.step_gpu(this->stream());  // allocates memory, which a recording may not
    const cuda::Graph graph(this->stream(), [&] { d.step_gpu(this->stream()); });
    for (int step = 0; step < 5; ++step) {
      if (step > 0) d.draw(this->stream());
      graph.replay(this->stream());
      d.step_cpu(cpu);
      d.expect_agreement();
    }
  }
}

// Counters are reallocated after a recording; the recording keeps using its own.
TYPED_TEST(CudaWindowStep, ARecordingOutlivesALargerLaunch) {
  cpu::Stream cpu;
  Decoding<TypeParam> d(this->stream(), {2, 2, 2, 64, 600}, Layout::Aligned);
  d.draw(this->stream());
  d.step_gpu(this->stream());
  const cuda::Graph graph(this->stream(), [&] { d.step_gpu(this->stream()); });
  Decoding<TypeParam> large(this->stream(), {160, 32, 32, 8, 300}, Layout::Aligned);
  for (auto& position : large.positions) position = 299;
  for (int step = 0; step < 3; ++step) {
    large.draw(this->stream());
    large.step_gpu(this->stream());
    large.step_cpu(cpu);
    large.expect_agreement();
    if (step > 0) d.draw(this->stream());
    graph.replay(this->stream());
    d.step_cpu(cpu);
    d.expect_agreement();
  }
}

// The last sequence alone, and with seven others at other positions.
TYPED_TEST(CudaWindowStep, BitsDoNotDependOnOtherSequences) {
  for (const auto& s :
       {StepCase{8, 8, 2, 64, 1000, 1003}, StepCase{8, 4, 4, 64, 700}, StepCase{8, 6, 6, 64, 4096, 0}}) {
    Decoding<TypeParam> d(this->stream(), s, Layout::Aligned);
    d.draw(this->stream());
    d.step_gpu(this->stream());
    const auto together = d.gpu_out.get();
    // The tightest bound that one sequence allows.
    d.longest = d.positions.back() + 1;
    d.step_gpu(this->stream(), 1);
    const auto alone = d.gpu_out.get();
    EXPECT_EQ(together.storage, alone.storage);
  }
}

// The same keys at the same distance from the query, at another place in the ring.
TYPED_TEST(CudaWindowStep, BitsDoNotDependOnThePlaceInTheRing) {
  const StepCase s{1, 4, 2, 64, 300, 310};
  Decoding<TypeParam> d(this->stream(), s, Layout::Aligned);
  d.longest = 5000;
  d.draw(this->stream());
  const auto start = [&](Index position) {
    Decoding<TypeParam> moved(this->stream(), s, Layout::Aligned);
    moved.longest = 5000;
    moved.positions = {position};
    moved.draw(this->stream());
    for (auto [to, from] : {std::pair{&moved.keys, &d.keys}, std::pair{&moved.values, &d.values}}) {
      for (Index i = 0; i < s.rows; ++i) {
        const Index cols = s.kv_cols(), row = (position + i) % s.rows;
        std::copy_n(from->host[0].view.data + i * cols, cols, to->host[0].view.data + row * cols);
      }
      to->device[0].set(to->host[0]);
    }
    moved.step_gpu(this->stream());
    return moved.gpu_out.get().storage;
  };
  const auto expected = start(310);
  for (const Index position : {311, 400, 619, 4000}) EXPECT_EQ(start(position), expected) << position;
}

}  // namespace
}  // namespace essh
