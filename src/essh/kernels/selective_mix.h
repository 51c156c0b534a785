#pragma once
#include "essh/kernels/gates.h"
#include "essh/kernels/selective_scan.h"
#include "essh/kernels/value_blend.h"

namespace essh {

// Gates, value blend, then scan or step, fused: everything between the projections of a spectral mixer and its output.
// For inference: nothing is kept for a gradient. The CUDA version is in selective_scan_forward.cu, whose kernels it
// shares.
template <class T>
struct SelectiveMix {
  Index sequences, length, width;
  Matrix<T> v0;                                             // tokens x (channels * width); may be overwritten
  Matrix<T> write_logits, read_logits, clock_logits;        // tokens x (channels * modes); may be overwritten
  Vector<const Wide<T>> write_bias, read_bias, clock_bias;  // channels * modes
  Vector<const Wide<T>> blend;                              // channels
  double eps;                                               // epsilon of the value blend
  Modes<const Wide<T>> modes;
  Vector<const Wide<T>* const> entering;  // state of each sequence; empty means zero
  Matrix<T> z;                            // (=) tokens x (channels * width); does not alias v0
  Vector<Wide<T>* const> leaving;  // (=) state after the last token; may be empty, leaving[b] may equal entering[b]
  double factor_range = admitted_decay<Wide<T>>();
  Vector<const std::int32_t> kept = {};  // single tokens only, as in SelectiveStep
  bool narrow_states = false;            // entering and leaving hold bf16 instead of Wide<T>
  // Entering states, pointers and kept were there before the pass began (EmbeddingForward), and the kernel before this
  // one need not have ended when they are read.
  bool settled = false;

  // Every sequence advances by one token: runs the recurrent step, not a chunk of length one.
  bool single_tokens() const { return length == 1 && entering.size > 0 && leaving.size > 0; }
};

template <class T>
void run(cpu::Stream&, const SelectiveMix<T>&);
template <class T>
void run(cuda::Stream&, const SelectiveMix<T>&);

// The unfused version: gates, blend and scan one after the other. The gates may overwrite their logits.
template <class T, class Stream>
void run_parts(Stream& stream, const SelectiveMix<T>& op, Matrix<Wide<T>> write, Matrix<Wide<T>> read,
               Matrix<Wide<T>> clock) {
  run(stream, GatesForward<T>{.write_logits = op.write_logits,
                              .read_logits = op.read_logits,
                              .clock_logits = op.clock_logits,
                              .write_bias = op.write_bias,
                              .read_bias = op.read_bias,
                              .clock_bias = op.clock_bias,
                              .write = write,
                              .read = read,
                              .clock = clock});
  run(stream, ValueBlendForward<T>{.v0 = op.v0, .blend = op.blend, .v = op.v0, .width = op.width, .eps = op.eps});
  if (op.single_tokens())
    return run(stream, SelectiveStep<T>{.width = op.width,
                                        .v = op.v0,
                                        .write = write,
                                        .read = read,
                                        .clock = clock,
                                        .modes = op.modes,
                                        .entering = op.entering,
                                        .leaving = op.leaving,
                                        .z = op.z,
                                        .kept = op.kept,
                                        .narrow_states = op.narrow_states});
  run(stream, SelectiveScanForward<T>{.sequences = op.sequences,
                                      .length = op.length,
                                      .width = op.width,
                                      .v = op.v0,
                                      .write = write,
                                      .read = read,
                                      .clock = clock,
                                      .modes = op.modes,
                                      .entering = op.entering,
                                      .z = op.z,
                                      .boundary = {},
                                      .leaving = op.leaving,
                                      .factor_range = op.factor_range,
                                      .narrow_states = op.narrow_states});
}

}  // namespace essh
