#pragma once
#include <map>
#include <memory>
#include <vector>

#include "essh/kernels/streamed_step.h"
#include "essh/model/model.h"
#include "essh/store/quantisation.h"

namespace essh {

// A model laid out for the streamed step: its weights once more, as tiles in the order of their use, and the memory
// through which workers exchange activations. Weights that are stored as codes stay codes if every layer has one
// quantisation and there is a step of it (streamed_formats); their bf16 values are those of the other copy.
template <class T>
class StreamedModel {
 public:
  // Null where the device or the sizes of the model do not allow it, or its weights do not fit a second time.
  // coded: empty, or one per tensor, in host memory; read by this call only.
  static std::unique_ptr<StreamedModel> make(const Model<T>& model, const Weights& weights,
                                             std::span<const CodedWeight> coded, const std::vector<StatePart>& parts,
                                             const std::vector<Index>& fixed_offsets, Stream& stream);

  // Most sequences of one step, and those up to which a step is faster than kernel by kernel.
  Index sequences() const { return limits_.sequences; }
  Index faster_up_to() const { return limits_.faster_pairs / config_.spectral_channels; }
  // "q8", "q4" or "fp8" if the step reads codes, else empty.
  std::string_view quantisation() const;

  // Advances up to sequences() sequences by one token. logits: sequences x vocabulary; keys: one each, zero before.
  void step(std::span<const StreamedSequence> list, float* logits, LogitKey* keys);

 private:
  StreamedModel(const Model<T>& model, StreamedLimits limits, Stream& stream)
      : config_(model.config()), stream_(stream), limits_(limits) {}
  void lay_out(const ParameterLayout& layout, const Weights& weights, std::span<const CodedWeight> coded,
               const std::vector<StatePart>& parts, const std::vector<Index>& fixed_offsets);
  // Autotuned, of a step of `count` sequences.
  StreamPace pace(Index count);
  class TrialSteps;
  // step() with the pace in operands_.
  void launch_step(std::span<const StreamedSequence> list, float* logits, LogitKey* keys);
  void make_exchange();

  ModelConfig config_;
  Stream& stream_;
  StreamedLimits limits_;
  std::vector<StreamedLayer> layers_;
  Array<StreamedLayer> layers_there_;
  Array<StreamShare> shares_;
  Array<Index> stream_begin_;
  Array<std::byte> streams_;
  Array<float> modal_;
  Array<double> frequencies_;
  StreamedStep<T> operands_ = {};
  // Two exchanges take turns: while one is used, the other is cleared as far as its last step reached.
  Array<std::byte> exchange_[2];
  Index exchange_bytes_ = 0;  // of one sequence
  Index reached_[2] = {};
  int turn_ = 0;
  Index fixed_bytes_ = 0, cache_bytes_ = 0;  // of a sequence of kFewestRows tokens
  std::map<Index, StreamPace> paces_;        // by sequences, rounded up to a power of two
};

}  // namespace essh
