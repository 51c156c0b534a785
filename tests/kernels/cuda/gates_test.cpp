#include "essh/kernels/gates.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class GatesCuda : public ::testing::Test {};
TYPED_TEST_SUITE(GatesCuda, TwinTypes);

TYPED_TEST(GatesCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index rows : {1, 513}) {
    for (const Index columns : {5, 16, 256}) {
      Rng rng(7);
      const auto make = [&](Index count, double scale, double shift) {
        StridedMatrix<double> m(count, columns, columns % 8 == 0 ? 8 : 3);
        m.normal(rng, scale, shift);
        return m;
      };
      auto wl = make(rows, 2, 0), rl = make(rows, 2, 0), cl = make(rows, 2, -2);
      auto wb = make(1, 1, 0), rb = make(1, 1, 0), cb = make(1, 1, -2);
      auto w = make(rows, 0, 0), r = make(rows, 0, 0), c = make(rows, 0, 0);
      auto dw = make(rows, 1, 0), dr = make(rows, 1, 0), dc = make(rows, 1, 0);
      auto dwl = make(rows, 0, 0), drl = make(rows, 0, 0), dcl = make(rows, 0, 0);
      auto dwb = make(1, 1, 0), drb = make(1, 1, 0), dcb = make(1, 1, 0);
      const TwinMatrix<T> gwl(wl), grl(rl), gcl(cl), gdwl(dwl), gdrl(drl), gdcl(dcl);
      const TwinMatrix<float> gwb(wb), grb(rb), gcb(cb), gw(w), gr(r), gc(c), gdw(dw), gdr(dr), gdc(dc), gdwb(dwb),
          gdrb(drb), gdcb(dcb);
      run(gpu(), GatesForward<T>{gwl.view(), grl.view(), gcl.view(), gwb.vector(), grb.vector(), gcb.vector(),
                                 gw.view(), gr.view(), gc.view()});
      run(host(), GatesForward<double>{wl.view, rl.view, cl.view, wb.vector(), rb.vector(), cb.vector(), w.view, r.view,
                                       c.view});
      gw.expect_close(w, "write");
      gr.expect_close(r, "read");
      gc.expect_close(c, "clock");
      run(gpu(), GatesBackward<T>{gw.view(), gr.view(), gc.view(), gdw.view(), gdr.view(), gdc.view(), gdwl.view(),
                                  gdrl.view(), gdcl.view(), gdwb.vector(), gdrb.vector(), gdcb.vector()});
      run(host(), GatesBackward<double>{w.view, r.view, c.view, dw.view, dr.view, dc.view, dwl.view, drl.view, dcl.view,
                                        dwb.vector(), drb.vector(), dcb.vector()});
      gdwl.expect_close(dwl, "d_write_logits");
      gdrl.expect_close(drl, "d_read_logits");
      gdcl.expect_close(dcl, "d_clock_logits");
      gdwb.expect_close(dwb, "d_write_bias", 4);
      gdrb.expect_close(drb, "d_read_bias", 4);
      gdcb.expect_close(dcb, "d_clock_bias", 4);
    }
  }
}

}  // namespace
}  // namespace essh
