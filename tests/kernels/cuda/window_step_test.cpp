#include "essh/kernels/window_step.h"

#include "tests/kernels/cuda/device_matrix.h"

namespace essh {
namespace {

struct Shape {
  Index sequences, heads, head_dim, window;
  Index cols() const { return heads * head_dim; }
};

// A few sequences in the middle of their lives, at positions of their own, stepping on the GPU in T and on the CPU in
// double.
template <class T>
struct Decoding {
  Shape s;
  std::vector<Index> positions;
  StridedMatrix<double> q, k, v, keys, values, out;
  DeviceMatrix<T> gpu_q, gpu_k, gpu_v, gpu_keys, gpu_values, gpu_out;
  Array<Index> gpu_positions;
  Rng rng{7};

  Decoding(cuda::Stream& stream, const Shape& shape, Layout layout)
      : s(shape),
        q(s.sequences, s.cols(), 0),
        k(q),
        v(q),
        keys(s.sequences, s.window * s.cols(), 0),
        values(keys),
        out(q),
        gpu_q(stream, s.sequences, s.cols(), layout),
        gpu_k(stream, s.sequences, s.cols(), layout),
        gpu_v(stream, s.sequences, s.cols(), layout),
        gpu_keys(stream, s.sequences, s.window * s.cols(), layout),
        gpu_values(stream, s.sequences, s.window * s.cols(), layout),
        gpu_out(stream, s.sequences, s.cols(), layout),
        gpu_positions(Device::Cuda, s.sequences, "a test") {
    gpu_keys.set(keys.normal(rng, 1.5));
    gpu_values.set(values.normal(rng));
    for (Index b = 0; b < s.sequences; ++b) positions.push_back(b * (s.window / 2 + 1));
  }
  void draw(cuda::Stream& stream) {
    gpu_q.set(q.normal(rng, 1.5));
    gpu_k.set(k.normal(rng, 1.5));
    gpu_v.set(v.normal(rng));
    stream.copy(gpu_positions.data(), positions.data(), positions.size() * sizeof(Index));
  }
  void step_gpu(cuda::Stream& stream) const {
    run(stream, WindowStep<T>{s.head_dim, s.window, gpu_q.view(), gpu_k.view(), gpu_v.view(), gpu_keys.view(),
                              gpu_values.view(), gpu_positions.view(), gpu_out.view()});
  }
  void step_cpu(cpu::Stream& stream) {
    run(stream, WindowStep<double>{s.head_dim,
                                   s.window,
                                   q.view,
                                   k.view,
                                   v.view,
                                   keys.view,
                                   values.view,
                                   {positions.data(), s.sequences},
                                   out.view});
    for (Index& position : positions) ++position;
  }
  void expect_agreement() {
    EXPECT_LE(relative_error(gpu_out.get(), out, s.head_dim), kCudaTolerance<T>)
        << s.sequences << " sequences, " << s.heads << " heads of " << s.head_dim << ", window " << s.window;
    EXPECT_EQ(gpu_keys.get().storage, keys.storage);
    EXPECT_EQ(gpu_values.get().storage, values.storage);
  }
};

template <class T>
class CudaWindowStep : public CudaTest {};
TYPED_TEST_SUITE(CudaWindowStep, CudaTypes);

TYPED_TEST(CudaWindowStep, AgreesWithTheCpu) {
  cpu::Stream cpu;
  for (const Layout layout : {Layout::Aligned, Layout::Misaligned}) {
    for (const auto& s : {Shape{1, 2, 64, 300}, Shape{3, 2, 64, 5}, Shape{4, 3, 64, 129}, Shape{3, 2, 8, 40},
                          Shape{2, 2, 40, 33}, Shape{2, 1, 128, 200}, Shape{2, 2, 64, 1}}) {
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

// Few heads share their keys out over many blocks, many heads do not.
TYPED_TEST(CudaWindowStep, FullWindows) {
  cpu::Stream cpu;
  for (const auto& s : {Shape{1, 14, 64, 2048}, Shape{64, 14, 64, 512}}) {
    Decoding<TypeParam> d(this->stream(), s, Layout::Aligned);
    for (auto& position : d.positions) position += s.window;
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
  Decoding<TypeParam> d(this->stream(), {2, 2, 64, 600}, Layout::Aligned);
  d.draw(this->stream());
  d.step_gpu(this->stream());  // takes the memory, which a recording may not
  const cuda::Graph graph(this->stream(), [&] { d.step_gpu(this->stream()); });
  for (int step = 0; step < 5; ++step) {
    if (step > 0) d.draw(this->stream());
    graph.replay(this->stream());
    d.step_cpu(cpu);
    d.expect_agreement();
  }
}

}  // namespace
}  // namespace essh
