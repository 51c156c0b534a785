#pragma once
#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/blend.cuh"
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/selective_mix.h"

// One token of a spectral mixer: gates, blend, recurrence and readout.
namespace essh::cuda::device {

inline constexpr int kStepModes = 8, kStepWidth = 64;                   // the most it takes
inline constexpr int kStepWarps = 4, kStepBlocks = 6, kStepStages = 2;  // per block, per multiprocessor, per warp

// A warp owns a channel and goes through sequences, `groups` apart; its copies bring the next one's state to shared
// memory meanwhile, so that reading the states needs no registers. A lane owns two adjacent values of every mode.
// S: of the states.
template <class S>
struct StepMemory {
  alignas(16) S state[kStepStages][2 * kStepModes * kStepWidth];
  float4 gates[kStepModes];    // write, cosine, sine, read
  float4 readout[kStepModes];  // cosine, sine, zero lag
};

template <class T, class S>
struct MixStep {
  const SelectiveMix<T>& op;
  StepMemory<S>& memory;
  int channel, lane;
  int width = static_cast<int>(op.width), modes = static_cast<int>(op.modes.decay.cols);
  int channels = static_cast<int>(op.modes.decay.rows);
  // Of the lane: its mode and what it computes of it, write, read or the clock; its bias, and the modal rotation.
  int mode = lane % 8, kind = lane / 8, gate = channel * modes + mode;
  bool gates = mode < modes && kind < 3;
  float bias = 0, cosine = 0, sine = 0, blend = 0;

  // What a sequence needs besides its state, read one sequence ahead.
  struct Inputs {
    const S* entering = nullptr;  // null: the sequence has no such channel
    S* leaving = nullptr;
    float v[2] = {}, logit = 0, grown = 1;
  };

  __device__ void read_constants() {
    blend = op.blend[channel];
    if (gates) bias = (kind == 0 ? op.write_bias : kind == 1 ? op.read_bias : op.clock_bias)[gate];
    if (gates && kind == 2) {
      const float rho = sigmoid(-op.modes.decay(channel, mode));
      sincosf(op.modes.frequency(channel, mode), &sine, &cosine);
      cosine *= rho;
      sine *= rho;
      const float kc = op.modes.readout_cos(channel, mode);
      memory.readout[mode] = {kc, op.modes.readout_sin(channel, mode), op.modes.zero_lag(channel, mode) * kc, 0};
    }
  }

  // Where its state lies.
  __device__ Inputs read_places(Index sequence) const {
    Inputs in;
    if (sequence >= op.sequences) return in;
    const int kept = op.kept.size > 0 ? op.kept[sequence] : channels;
    if (channel < kept) {
      const Index place = Index{channel} * modes * 2 * width;
      in.entering = reinterpret_cast<const S*>(op.entering[sequence]) + place;
      in.leaving = reinterpret_cast<S*>(op.leaving[sequence]) + place;
      in.grown = sqrtf(static_cast<float>(channels) / static_cast<float>(kept));
    }
    return in;
  }
  __device__ void read_values(Index sequence, Inputs& in) const {
    if (sequence >= op.sequences) return;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (2 * lane + i < width) in.v[i] = widen(op.v0(sequence, channel * width + 2 * lane + i));
    if (gates)
      in.logit = widen((kind == 0 ? op.write_logits : kind == 1 ? op.read_logits : op.clock_logits)(sequence, gate));
  }
  __device__ Inputs read_inputs(Index sequence) const {
    auto in = read_places(sequence);
    read_values(sequence, in);
    return in;
  }
  // Starts copies; every call is one group of them.
  __device__ void copy_state(const S* from, int stage) const {
    const int bytes = modes * 2 * width * int{sizeof(S)};
    S* const to = memory.state[stage];
    if (from != nullptr) {
      if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && bytes % 16 == 0) {
        for (int i = lane * 16; i < bytes; i += 32 * 16)
          copy_async(shared_address(to) + static_cast<unsigned>(i), reinterpret_cast<const std::byte*>(from) + i, true);
      } else {
        for (int i = lane; i < modes * 2 * width; i += 32) to[i] = from[i];
      }
    }
    end_copies();
  }

  // The state lies in shared memory.
  __device__ void advance(Index sequence, const Inputs& in, int stage) const {
    T* const z_of = &op.z(sequence, channel * width);
    const bool inside[2] = {2 * lane < width, 2 * lane + 1 < width};
    float z[2] = {0, 0};
    if (in.entering != nullptr) {
      const float scale = blend_scale(
          blend, inverse_rms(warp_sum(in.v[0] * in.v[0] + in.v[1] * in.v[1]), width, static_cast<float>(op.eps)));
      if (gates) {
        const float logit = in.logit + bias;
        auto* const to = reinterpret_cast<float*>(memory.gates + mode);
        if (kind == 0) {
          to[0] = scale * (2 * sigmoid(logit));
        } else if (kind == 1) {
          to[3] = 2 * sigmoid(logit);
        } else {
          const float kept = sigmoid(-logit);  // exp(-softplus)
          to[1] = kept * cosine;
          to[2] = kept * sine;
        }
      }
      __syncwarp();
      const S* const state = memory.state[stage] + 2 * lane;
      const bool pairs = width % 2 == 0 && reinterpret_cast<std::uintptr_t>(in.leaving) % (2 * sizeof(S)) == 0;
#pragma unroll
      for (int m = 0; m < kStepModes; ++m) {
        if (m >= modes) break;
        const float4 g = memory.gates[m], k = memory.readout[m];
        float a[2] = {}, b[2] = {}, x[2], y[2];
        if (width % 2 == 0) {
          if (inside[0]) {
            cuda::load(state + 2 * m * width, a);
            cuda::load(state + (2 * m + 1) * width, b);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (inside[i]) {
              a[i] = widen(state[2 * m * width + i]);
              b[i] = widen(state[(2 * m + 1) * width + i]);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float written = g.x * in.v[i];
          x[i] = g.y * a[i] - g.z * b[i] + written;
          y[i] = g.z * a[i] + g.y * b[i];
          z[i] += g.w * (x[i] * k.x - y[i] * k.y - k.z * written);
        }
        S* const to = in.leaving + 2 * m * width + 2 * lane;
        if (pairs) {
          if (inside[0]) {
            cuda::store(to, x);
            cuda::store(to + width, y);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (inside[i]) {
              to[i] = narrow<S>(x[i]);
              to[width + i] = narrow<S>(y[i]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (inside[i]) z_of[2 * lane + i] = narrow<T>(z[i] * in.grown);
    __syncwarp();  // before gates and state are written again
  }
};

template <class T, class S>
__global__ void __launch_bounds__(kStepWarps * 32, kStepBlocks) mix_step(SelectiveMix<T> op, int groups) {
  let_next_start();
  extern __shared__ __align__(16) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, channels = static_cast<int>(op.modes.decay.rows);
  const int item = static_cast<int>(blockIdx.x) * kStepWarps + warp;
  if (item >= groups * channels) return;
  MixStep<T, S> step{.op = op,
                     .memory = reinterpret_cast<StepMemory<S>*>(shared)[warp],
                     .channel = item % channels,
                     .lane = static_cast<int>(threadIdx.x) % 32};
  Index sequence = item / channels;
  if (!op.settled) after_previous();
  auto now = step.read_places(sequence), next = step.read_places(sequence + groups);
  step.copy_state(now.entering, 0);
  // Constants are weights, which no kernel of a pass writes. Where every warp has one sequence they are read while it
  // waits, else while the state is on its way.
  const bool few = groups >= op.sequences;
  if (few) step.read_constants();
  if (op.settled) after_previous();
  step.read_values(sequence, now);
  step.read_values(sequence + groups, next);
  if (!few) step.read_constants();
  for (int stage = 0; sequence < op.sequences; sequence += groups, stage ^= 1) {
    step.copy_state(next.entering, stage ^ 1);
    const auto after = step.read_inputs(sequence + 2 * Index{groups});
    wait_for_copies<1>();
    __syncwarp();
    step.advance(sequence, now, stage);
    now = next;
    next = after;
  }
}

// Warps that are there at once take the sequences of a channel in turns.
template <class T, class S>
void launch_mix_step(Stream& stream, const SelectiveMix<T>& op) {
  const Index channels = op.modes.decay.rows, warps = Index{stream.multiprocessors()} * kStepBlocks * kStepWarps;
  const Index groups = std::clamp<Index>(warps / channels, 1, op.sequences);
  launch(stream, "selective step",
         {.grid = dim3(static_cast<unsigned>((groups * channels + kStepWarps - 1) / kStepWarps)),
          .block = dim3(kStepWarps * 32),
          .shared = kStepWarps * sizeof(StepMemory<S>),
          .early = true},
         mix_step<T, S>, op, static_cast<int>(groups));
}

}  // namespace essh::cuda::device
