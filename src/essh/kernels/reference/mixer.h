#pragma once
#include <vector>

#include "essh/kernels/reference/dual.h"
#include "essh/tensor/matrix.h"

// The spectral mixer as scalar templates: double defines the value, Dual gives the gradient.
namespace essh::reference {

// v = ((1 - beta) + beta / sqrt(mean(v0^2) + eps)) v0 over one channel.
template <class S>
std::vector<S> value_blend(const std::vector<S>& v0, S beta, double eps) {
  using std::sqrt;
  S squares = 0;
  for (const S& x : v0) squares += x * x;
  const S inverse = S(1) / sqrt(squares / S(static_cast<double>(v0.size())) + S(eps));
  std::vector<S> v;
  for (const S& x : v0) v.push_back(((S(1) - beta) + beta * inverse) * x);
  return v;
}

template <class S>
struct Mode {
  S decay, frequency, readout_cos, readout_sin, zero_lag;
};

// The inputs of one channel over a range of tokens: v[t][p]; write, read, clock [t][mode].
template <class S>
struct ChannelInput {
  std::vector<std::vector<S>> v, write, read, clock;
};

// state[mode][0 or 1][p]
template <class S>
using ChannelState = std::vector<std::vector<std::vector<S>>>;

template <class S>
ChannelState<S> zero_state(std::size_t modes, std::size_t width) {
  return ChannelState<S>(modes, std::vector<std::vector<S>>(2, std::vector<S>(width, S(0))));
}

// The recurrence as defined, token by token. Advances `state`, returns z[t][p].
template <class S>
std::vector<std::vector<S>> selective_recurrence(const ChannelInput<S>& in, const std::vector<Mode<S>>& modes,
                                                 ChannelState<S>& state) {
  using std::exp, std::cos, std::sin;
  std::vector<std::vector<S>> z;
  for (std::size_t t = 0; t < in.v.size(); ++t) {
    const std::size_t width = in.v[t].size();
    std::vector<S> out(width, S(0));
    for (std::size_t i = 0; i < modes.size(); ++i) {
      const Mode<S>& m = modes[i];
      const S kept = exp(-(softplus(m.decay) + in.clock[t][i]));
      const S c = kept * cos(m.frequency), s = kept * sin(m.frequency);
      for (std::size_t p = 0; p < width; ++p) {
        S& first = state[i][0][p];
        S& second = state[i][1][p];
        const S x = c * first - s * second + in.write[t][i] * in.v[t][p];
        const S y = s * first + c * second;
        first = x;
        second = y;
        out[p] += in.read[t][i] *
                  (x * m.readout_cos - y * m.readout_sin - m.zero_lag * in.write[t][i] * m.readout_cos * in.v[t][p]);
      }
    }
    z.push_back(out);
  }
  return z;
}

// The same from the explicit interaction matrix of the whole range (eq. corrected_kernel_expansion), for a zero
// entering state.
template <class S>
std::vector<std::vector<S>> interaction_matrix(const ChannelInput<S>& in, const std::vector<Mode<S>>& modes) {
  using std::exp, std::cos, std::sin;
  const std::size_t length = in.v.size();
  std::vector<std::vector<S>> g(length, std::vector<S>(length, S(0)));
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const Mode<S>& m = modes[i];
    for (std::size_t t = 0; t < length; ++t) {
      S clocks = 0;
      for (std::size_t s = t + 1; s-- > 0;) {
        const S lag = S(static_cast<double>(t - s));
        const S response = exp(-(lag * softplus(m.decay) + clocks)) *
                           (m.readout_cos * cos(m.frequency * lag) - m.readout_sin * sin(m.frequency * lag));
        const S current = s == t ? m.zero_lag * m.readout_cos : S(0);
        g[t][s] += in.read[t][i] * in.write[s][i] * (response - current);
        clocks += in.clock[s][i];
      }
    }
  }
  return g;
}

}  // namespace essh::reference
