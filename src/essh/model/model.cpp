#include "essh/model/model.h"

#include "essh/kernels/copy.h"
#include "essh/kernels/embedding.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/rms_norm.h"

namespace essh {

template <class T>
Model<T>::Model(const ModelConfig& config)
    : config_(config),
      layout_(config),
      embedding_(layout_.find(-1, "model.embed_tokens.weight")),
      last_gain_(layout_.find(-1, "model.norm.weight")) {
  std::size_t parts = 0;
  for (Index layer = 0; layer < config_.num_hidden_layers; ++layer) {
    blocks_.push_back({layout_.find(layer, "input_layernorm.weight"),
                       layout_.find(layer, "post_attention_layernorm.weight"), make_mixer<T>(config_, layout_, layer),
                       FeedForward<T>(layout_, layer), parts});
    parts += mixer_state(config_, layer, {.rows = format_of<T>()}).size();
  }
}

template <class T>
Residual<T> Model<T>::new_residual(Arena& arena, Index rows) const {
  if constexpr (!std::is_same_v<T, W>) {
    if (config_.residual_in_fp32) return arena.matrix<W>(rows, config_.hidden_size);
  }
  return arena.matrix<T>(rows, config_.hidden_size);
}

template <class T>
Residual<T> Model<T>::embed(const Pass& pass, const Weights& weights, Vector<const std::int32_t> tokens) const {
  const auto x = new_residual(pass.arena, tokens.size);
  std::visit(
      [&]<class R>(Matrix<R> to) {
        launch(pass.stream, EmbeddingForward<T, R>{.tokens = tokens, .table = weights[embedding_], .x = to});
      },
      x);
  return x;
}

template <class T>
Matrix<T> Model<T>::norm(const Pass& pass, const Weights& weights, std::size_t gain, const Residual<T>& x, Matrix<T> y,
                         Vector<W> inverse_rms) const {
  std::visit(
      [&]<class R>(Matrix<R> from) {
        launch(pass.stream, RmsNormForward<T, R>{.x = from,
                                                 .gain = weights.vector<W>(gain),
                                                 .y = y,
                                                 .inverse_rms = inverse_rms,
                                                 .eps = config_.rms_norm_eps});
      },
      x);
  return y;
}

template <class T>
Matrix<T> Model<T>::forward(const Pass& pass, const Weights& weights, Vector<const std::int32_t> tokens,
                            Tape* tape) const {
  const Index rows = pass.tokens();
  const auto u = pass.arena.matrix<T>(rows, config_.hidden_size);
  auto x = embed(pass, weights, tokens);
  // With a tape, each residual gets its own matrix, for backward.
  const auto next_x = [&] { return tape ? new_residual(pass.arena, rows) : x; };
  for (const auto& block : blocks_) {
    BlockTape kept;
    const auto block_mark = pass.arena.mark();
    if (tape) {
      kept.x = x;
      kept.inverse_rms = pass.arena.vector<W>(rows);
      kept.inverse_rms_mixed = pass.arena.vector<W>(rows);
    }
    norm(pass, weights, block.mixer_gain, x, u, kept.inverse_rms);
    const auto mixed = next_x();
    block.mixer->forward(pass, weights, u, x, mixed, tape ? &kept.mixer : nullptr);
    kept.x_mixed = mixed;
    norm(pass, weights, block.feed_forward_gain, mixed, u, kept.inverse_rms_mixed);
    x = next_x();
    block.feed_forward.forward(pass, weights, u, mixed, x, tape ? &kept.feed_forward : nullptr);
    if (tape)
      tape->blocks.push_back(std::move(kept));
    else
      pass.arena.release(block_mark);
  }
  Vector<W> inverse_rms;
  if (tape) {
    tape->x = x;
    inverse_rms = tape->inverse_rms = pass.arena.vector<W>(rows);
  }
  return norm(pass, weights, last_gain_, x, u, inverse_rms);
}

template <class T>
void Model<T>::backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients,
                        Vector<const std::int32_t> tokens, const Tape& tape, Matrix<const T> d_hidden) const {
  const Index rows = pass.tokens(), width = config_.hidden_size;
  const auto mark = pass.arena.mark();
  const auto like_x = [&] { return pass.arena.matrix<T>(rows, width); };
  const auto d_residual = new_residual(pass.arena, rows);
  const auto d_u = like_x(), u = like_x();
  // Products need the residual's gradient in T: the gradient itself, or the rounded copy made by each norm.
  const auto* in_t = std::get_if<Matrix<T>>(&d_residual);
  const auto rounded = in_t ? Matrix<T>{} : like_x();
  const auto d_x = in_t ? *in_t : rounded;
  const auto norm_backward = [&](std::size_t gain, const Residual<T>& x, Vector<const W> inverse_rms,
                                 Matrix<const T> d_y) {
    std::visit(
        [&]<class R>(Matrix<R> d) {
          launch(pass.stream, RmsNormBackward<T, R>{.x = std::get<Matrix<R>>(x),
                                                    .gain = weights.vector<W>(gain),
                                                    .inverse_rms = inverse_rms,
                                                    .d_y = d_y,
                                                    .d_x = d,
                                                    .d_gain = gradients.vector(gain),
                                                    .rounded = rounded});
        },
        d_residual);
  };
  std::visit([&]<class R>(Matrix<R> d) { launch(pass.stream, Fill<R>{.x = d, .value = 0}); }, d_residual);
  norm_backward(last_gain_, tape.x, tape.inverse_rms, d_hidden);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const auto& block = blocks_[i];
    const auto& kept = tape.blocks[i];
    norm(pass, weights, block.feed_forward_gain, kept.x_mixed, u, {});
    block.feed_forward.backward(pass, weights, gradients, u, d_x, kept.feed_forward, d_u);
    norm_backward(block.feed_forward_gain, kept.x_mixed, kept.inverse_rms_mixed, d_u);
    norm(pass, weights, block.mixer_gain, kept.x, u, {});
    block.mixer->backward(pass, weights, gradients, u, d_x, *kept.mixer, d_u);
    norm_backward(block.mixer_gain, kept.x, kept.inverse_rms, d_u);
    if (pass.layer_done) (*pass.layer_done)(static_cast<Index>(i));
  }
  std::visit(
      [&]<class R>(Matrix<R> d) {
        launch(pass.stream, EmbeddingBackward<R>{.tokens = tokens, .d_x = d, .d_table = gradients.matrix(embedding_)});
      },
      d_residual);
  pass.arena.release(mark);
}

template <class T>
template <class Out>
void Model<T>::head(const Pass& pass, const Weights& weights, Matrix<const T> hidden, Matrix<Out> logits) const {
  launch(pass.stream,
         Linear<T, Out>{.x = hidden, .weights = {&weights[embedding_], 1}, .y = logits, .bits = pass.bits});
}

template <class T>
void Model<T>::head_backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients,
                             Matrix<const T> hidden, Matrix<const T> d_logits, Matrix<T> d_hidden) const {
  launch(pass.stream, Gemm<T>{.a = d_logits, .b = weights[embedding_].as<T>(), .c = d_hidden});
  launch(pass.stream,
         Gemm<T, W>{
             .a = d_logits, .b = hidden, .c = gradients.matrix(embedding_), .transpose_a = Transpose::Yes, .beta = 1});
}

template <class T>
Matrix<T> Model<T>::extend(const Pass& pass, const Weights& weights, Vector<const std::int32_t> tokens,
                           const SequenceBatch& sequences) const {
  NormedResidual<T> u{.x = embed(pass, weights, tokens),
                      .eps = config_.rms_norm_eps,
                      .norm = {.gain = {},
                               .y = pass.arena.matrix<T>(tokens.size, config_.hidden_size),
                               .squares = pass.arena.matrix<W>(NextNorm<T>::kMostParts, tokens.size)}};
  if (!blocks_.empty()) u.norm.gain = weights.vector<W>(blocks_[0].mixer_gain);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const auto& block = blocks_[i];
    const auto mark = pass.arena.mark();
    const auto next_gain = i + 1 < blocks_.size() ? weights.vector<W>(blocks_[i + 1].mixer_gain) : Vector<const W>{};
    block.mixer->extend(pass, weights, u, weights.vector<W>(block.feed_forward_gain), sequences, block.first_part);
    block.feed_forward.extend(pass, weights, u, next_gain, sequences.all_units());
    pass.arena.release(mark);
  }
  return norm(pass, weights, last_gain_, u.x, u.norm.y, {});
}

template class Model<float>;
template class Model<double>;
template class Model<BFloat16>;
template void Model<float>::head(const Pass&, const Weights&, Matrix<const float>, Matrix<float>) const;
template void Model<double>::head(const Pass&, const Weights&, Matrix<const double>, Matrix<double>) const;
template void Model<BFloat16>::head(const Pass&, const Weights&, Matrix<const BFloat16>, Matrix<BFloat16>) const;
template void Model<BFloat16>::head(const Pass&, const Weights&, Matrix<const BFloat16>, Matrix<float>) const;

}  // namespace essh
