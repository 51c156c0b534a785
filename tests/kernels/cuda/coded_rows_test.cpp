#include "essh/kernels/coded_rows.h"

#include "essh/kernels/window_step.h"
#include "tests/kernels/cuda/device_matrix.h"

namespace essh {
namespace {

template <class T>
class CudaCodedRows : public CudaTest {};
TYPED_TEST_SUITE(CudaCodedRows, CudaTypes);

std::vector<std::byte> bytes_of(cuda::Stream& stream, const Array<std::byte>& from) {
  std::vector<std::byte> to(static_cast<std::size_t>(from.size()));
  stream.copy(to.data(), from.data(), to.size());
  stream.wait();
  return to;
}

TYPED_TEST(CudaCodedRows, AreTheBytesOfTheCpu) {
  cpu::Stream host(2);
  Rng rng(3);
  for (const auto& [heads, head_dim] : {std::pair<Index, Index>{1, 8}, {3, 64}, {14, 64}, {2, 128}, {3, 40}}) {
    StridedMatrix<double> rows(37, heads * head_dim, 0);
    rows.normal(rng, 2);
    for (Index c = 0; c < head_dim; ++c) rows.view(4, c) = 0;
    DeviceMatrix<TypeParam> there(this->stream(), 37, heads * head_dim, Layout::Misaligned),
        back(this->stream(), 37, heads * head_dim, Layout::Misaligned);
    there.set(rows);
    const Index bytes = 37 * coded_row_bytes(heads * head_dim, head_dim);
    std::vector<std::byte> wanted(static_cast<std::size_t>(bytes), std::byte{0x5a});
    const Array<std::byte> coded(Device::Cuda, bytes, "a test");
    this->stream().copy(coded.data(), wanted.data(), wanted.size());
    run(this->stream(), StoreCodedRows<TypeParam>{.head_dim = head_dim, .from = there.view(), .to = coded.data()});
    run(host, StoreCodedRows<double>{.head_dim = head_dim, .from = rows.view, .to = wanted.data()});
    EXPECT_EQ(bytes_of(this->stream(), coded), wanted) << heads << " heads of " << head_dim;
    run(this->stream(), LoadCodedRows<TypeParam>{.head_dim = head_dim, .from = coded.data(), .to = back.view()});
    run(host, LoadCodedRows<double>{.head_dim = head_dim, .from = wanted.data(), .to = rows.view});
    const auto found = back.get();
    for (Index r = 0; r < 37; ++r) {
      for (Index c = 0; c < heads * head_dim; ++c)
        ASSERT_EQ(found.view(r, c),
                  static_cast<double>(static_cast<float>(TypeParam(static_cast<float>(rows.view(r, c))))));
    }
  }
}

// Steps of several sequences over caches in eight bits, against the CPU in double; caches are equal byte by byte.
TYPED_TEST(CudaCodedRows, StepsAgreeWithTheCpu) {
  cpu::Stream host(2);
  Rng rng(7);
  struct Shape {
    Index heads, kv_heads, head_dim, window, ring;
  };
  for (const auto& [heads, kv_heads, head_dim, window, ring] : {Shape{1, 1, 8, 1, 17},
                                                                {4, 2, 64, 50, 66},
                                                                {6, 1, 128, 300, 316},
                                                                {3, 3, 40, 130, 146},
                                                                // Streamed rows.
                                                                {32, 32, 64, 300, 316},
                                                                {14, 14, 64, 129, 145},
                                                                {16, 8, 128, 200, 216},
                                                                {17, 17, 128, 40, 56}}) {
    const Index sequences = 5, width = kv_heads * head_dim, row_bytes = coded_row_bytes(width, head_dim);
    const Index bytes = ring * row_bytes;
    std::vector<Index> positions;
    for (Index b = 0; b < sequences; ++b) positions.push_back(b * (window / 2 + 1));
    std::vector<std::byte> caches[2];
    Array<std::byte> caches_there[2];
    std::vector<double*> pointers[2];
    Array<TypeParam*> pointers_there[2];
    for (std::size_t i : {0u, 1u}) {
      StridedMatrix<double> rows(sequences * ring, width, 0);
      caches[i].assign(static_cast<std::size_t>(sequences * bytes), std::byte{0});
      run(host,
          StoreCodedRows<double>{.head_dim = head_dim, .from = rows.normal(rng, 1.5).view, .to = caches[i].data()});
      caches_there[i] = Array<std::byte>(Device::Cuda, sequences * bytes, "a test");
      this->stream().copy(caches_there[i].data(), caches[i].data(), caches[i].size());
      std::vector<TypeParam*> there;
      for (Index b = 0; b < sequences; ++b) {
        pointers[i].push_back(reinterpret_cast<double*>(caches[i].data() + b * bytes));
        there.push_back(reinterpret_cast<TypeParam*>(caches_there[i].data() + b * bytes));
      }
      pointers_there[i] = Array<TypeParam*>(Device::Cuda, sequences, "a test");
      this->stream().copy(pointers_there[i].data(), there.data(), there.size() * sizeof(TypeParam*));
    }
    const Array<Index> positions_there(Device::Cuda, sequences, "a test");
    for (int step = 0; step < 5; ++step) {
      StridedMatrix<double> q(sequences, heads * head_dim, 0), k(sequences, width, 0), v(k), out(q);
      DeviceMatrix<TypeParam> q_there(this->stream(), sequences, q.view.cols),
          k_there(this->stream(), sequences, width), v_there(this->stream(), sequences, width),
          out_there(this->stream(), sequences, q.view.cols);
      q_there.set(q.normal(rng, 1.5));
      k_there.set(k.normal(rng, 1.5));
      v_there.set(v.normal(rng));
      this->stream().copy(positions_there.data(), positions.data(), positions.size() * sizeof(Index));
      run(this->stream(), WindowStep<TypeParam>{.head_dim = head_dim,
                                                .window = window,
                                                .rows = ring,
                                                .longest = window,
                                                .q = q_there.view(),
                                                .k = k_there.view(),
                                                .v = v_there.view(),
                                                .keys = {pointers_there[0].data(), sequences},
                                                .values = {pointers_there[1].data(), sequences},
                                                .positions = positions_there.view(),
                                                .out = out_there.view(),
                                                .coded = true});
      run(host, WindowStep<double>{.head_dim = head_dim,
                                   .window = window,
                                   .rows = ring,
                                   .longest = window,
                                   .q = q.view,
                                   .k = k.view,
                                   .v = v.view,
                                   .keys = {pointers[0].data(), sequences},
                                   .values = {pointers[1].data(), sequences},
                                   .positions = {positions.data(), sequences},
                                   .out = out.view,
                                   .coded = true});
      EXPECT_LE(relative_error(out_there.get(), out, head_dim), kCudaTolerance<TypeParam>)
          << heads << ":" << kv_heads << " heads of " << head_dim << ", window " << window << ", step " << step;
      for (std::size_t i : {0u, 1u})
        EXPECT_EQ(bytes_of(this->stream(), caches_there[i]), caches[i]) << "cache " << i << ", step " << step;
      for (auto& position : positions) ++position;
    }
  }
}

}  // namespace
}  // namespace essh
