#include "essh/kernels/coded_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/kernels/window_step.h"
#include "tests/kernels/random_matrix.h"

namespace essh {
namespace {

TEST(E4M3, NumbersKeepTheirCodes) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = from_e4m3(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(from_e4m3(to_e4m3(value))));
      continue;
    }
    EXPECT_EQ(to_e4m3(value), code);
    // Halfway to the next number: to the even one.
    const float next = from_e4m3(static_cast<std::uint8_t>(code + 1));
    if (std::isnan(next)) continue;
    EXPECT_EQ(to_e4m3((value + next) / 2), code % 2 == 0 ? code : code + 1) << value;
  }
  EXPECT_EQ(to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(to_e4m3(-INFINITY), 0xfe);
}

TEST(CodedRows, EveryElementIsWithinItsBound) {
  cpu::Stream stream(2);
  Rng rng(3);
  for (const auto& [heads, head_dim] : {std::pair<Index, Index>{1, 8}, {3, 64}, {14, 64}, {2, 128}, {5, 4}}) {
    StridedMatrix<float> rows(9, heads * head_dim);
    rows.normal(rng, 2);
    for (Index c = 0; c < head_dim; ++c) rows.view(4, c) = 0;
    rows.view(5, 0) = 3e38f;
    rows.view(6, 0) = 1e-44f;
    const Index bytes = coded_row_bytes(rows.view.cols, head_dim);
    EXPECT_EQ(bytes % 16, 0);
    std::vector<std::byte> coded(static_cast<std::size_t>(9 * bytes), std::byte{0x5a});
    run(stream, StoreCodedRows<float>{.head_dim = head_dim, .from = rows.view, .to = coded.data()});
    StridedMatrix<float> back(9, heads * head_dim);
    run(stream, LoadCodedRows<float>{.head_dim = head_dim, .from = coded.data(), .to = back.view});
    for (Index r = 0; r < 9; ++r) {
      for (Index h = 0; h < heads; ++h) {
        double largest = 0;
        for (Index c = h * head_dim; c < (h + 1) * head_dim; ++c)
          largest = std::max(largest, std::abs(static_cast<double>(rows.view(r, c))));
        for (Index c = h * head_dim; c < (h + 1) * head_dim; ++c) {
          const double x = static_cast<double>(rows.view(r, c)),
                       apart = std::abs(static_cast<double>(back.view(r, c)) - x);
          EXPECT_LE(apart, std::max(std::abs(x) / 16, largest / 448 * 1.01 * 0x1p-10) + 1e-41) << r << ", " << c;
        }
      }
      for (Index i = heads * head_dim + 2 * heads; i < bytes; ++i)
        EXPECT_EQ(coded[static_cast<std::size_t>(r * bytes + i)], std::byte{0}) << "padding";
    }
  }
}

// A step over codes is a step over the rows that the codes stand for; the new row is stored as a code.
TEST(CodedRows, AWindowStepReadsAndWritesThem) {
  cpu::Stream stream(2);
  Rng rng(5);
  const Index heads = 4, kv_heads = 2, head_dim = 8, window = 100, ring = 103, width = kv_heads * head_dim;
  const Index bytes = coded_row_bytes(width, head_dim);
  StridedMatrix<double> keys(ring, width, 0), values(ring, width, 0), q(1, heads * head_dim), k(1, width), v(1, width);
  std::vector<std::byte> coded[2];
  for (std::size_t i : {0u, 1u}) {
    auto& rows = i == 0 ? keys : values;
    coded[i].resize(static_cast<std::size_t>(ring * bytes));
    run(stream, StoreCodedRows<double>{.head_dim = head_dim, .from = rows.normal(rng).view, .to = coded[i].data()});
    run(stream, LoadCodedRows<double>{.head_dim = head_dim, .from = coded[i].data(), .to = rows.view});
  }
  for (Index position = 0; position < 250; ++position) {
    StridedMatrix<double> plain_out(1, heads * head_dim), coded_out(1, heads * head_dim);
    q.normal(rng);
    k.normal(rng);
    v.normal(rng);
    double* const plain_pointers[] = {keys.view.data, values.view.data};
    double* const coded_pointers[] = {reinterpret_cast<double*>(coded[0].data()),
                                      reinterpret_cast<double*>(coded[1].data())};
    WindowStep<double> op{.head_dim = head_dim,
                          .window = window,
                          .rows = ring,
                          .longest = 250,
                          .q = q.view,
                          .k = k.view,
                          .v = v.view,
                          .keys = {plain_pointers, 1},
                          .values = {plain_pointers + 1, 1},
                          .positions = {&position, 1},
                          .out = plain_out.view};
    run(stream, op);
    op.keys = {coded_pointers, 1};
    op.values = {coded_pointers + 1, 1};
    op.out = coded_out.view;
    op.coded = true;
    run(stream, op);
    for (Index c = 0; c < heads * head_dim; ++c)
      EXPECT_DOUBLE_EQ(coded_out.view(0, c), plain_out.view(0, c)) << position;
    // From here on the plain cache has what the codes stand for.
    for (std::size_t i : {0u, 1u})
      run(stream, LoadCodedRows<double>{.head_dim = head_dim,
                                        .from = coded[i].data() + position % ring * bytes,
                                        .to = (i == 0 ? keys : values).view.middle(position % ring, 1)});
  }
}

}  // namespace
}  // namespace essh
