#pragma once
#include "essh/kernels/cuda/device/blend.cuh"
#include "essh/kernels/cuda/device/exchange.cuh"
#include "essh/kernels/cuda/device/streamed_tiles.cuh"

// The blocks of the streamed step.
namespace essh::cuda::device {

// One block. kMost: bound on the sequences; kLayers and kHead: formats of the weights. Multiply-adds are explicit:
// otherwise kMost would decide which of two products is rounded.
template <class T, int kMost, TileFormat kLayers, TileFormat kHead>
struct Worker {
  static constexpr int kColumns = StepTiles<T, kLayers, kHead>::kColumns;
  const StreamedStep<T>& op;
  const Shared<T, kColumns>& shared;
  RingPlace reader;
  int worker, warp, lane, thread;
  const bool gives_back = lane == 0 || op.lanes_give_back;
  int toggle = 0, squares_toggle = 0;
  int product = 0;
  unsigned hidden_phase = 0;  // of the chunks of hidden units
  float own_squares = 0;      // of a single sequence's residual, until they are summed
  bool squares_wait = false;
  long long since = 0;

  // Adds the cycles since the last call to a phase.
  __device__ __forceinline__ void end_phase(StepPhase phase) {
    if (op.cycles == nullptr || thread != 0) return;
    const long long now = clock64();
    op.cycles[worker * kStepPhases + static_cast<int>(phase)] += now - since;
    since = now;
  }

  template <class E>
  __device__ void copy_words(const E* from, E* to, int items) const {
    const auto* source = reinterpret_cast<const unsigned*>(from);
    auto* target = reinterpret_cast<unsigned*>(to);
    for (int i = thread; i < items * int{sizeof(E) / 4}; i += kReaders) target[i] = source[i];
  }

  __device__ int count() const { return kMost == 1 ? 1 : op.count; }
  __device__ const std::byte* part(int offset, int b, int bytes) const {
    return op.exchange + static_cast<Index>(offset) * count() + static_cast<Index>(b) * bytes;
  }
  __device__ float* floats(int offset, int b, int elements) const {
    return reinterpret_cast<float*>(const_cast<std::byte*>(part(offset, b, elements * 4)));
  }
  __device__ T* narrow_part(int offset, int b, int elements) const {
    return reinterpret_cast<T*>(const_cast<std::byte*>(part(offset, b, elements * int{sizeof(T)})));
  }
  __device__ int input_stride_() const { return input_stride<T, kColumns>(op.widest); }
  // A residual in the exchange: of each sequence as float, for who adds to it, and as T, for who multiplies.
  static constexpr bool kNarrows = sizeof(T) < sizeof(float);
  __device__ int residual_elements() const { return (op.hidden + kTileRows - 1) / kTileRows * kTileRows; }
  __device__ float* wide_residual(int offset, int b) const {
    const auto bytes = static_cast<int>(residual_bytes<T>(op.hidden));
    return reinterpret_cast<float*>(const_cast<std::byte*>(part(offset, b, bytes)));
  }
  __device__ T* narrow_residual(int offset, int b) const {
    return reinterpret_cast<T*>(wide_residual(offset, b) + (kNarrows ? residual_elements() : 0));
  }

  __device__ std::int32_t token(int b) const {
    const auto& s = op.sequence[b];
    return s.drawn ? token_of_key(*s.drawn) : s.token;
  }

  __device__ static void store4(T* to, float4 x) {
    const float all[4] = {x.x, x.y, x.z, x.w};
    cuda::store(to, all);
  }

  // input = gain * residual, not yet divided by its root mean square. The residual is `leaving` of the previous layer,
  // or the embedding.
  __device__ void take_residual(int offset, const float* gain) {
    squares_toggle ^= 1;
    const int padded = padded_inner<kColumns>(op.hidden);
    float squares[kMost] = {};
    for (int i = thread * 4; i < padded; i += kReaders * 4) {
      const bool inside = i < op.hidden;
      const float4 g = inside ? *reinterpret_cast<const float4*>(gain + i) : float4{0, 0, 0, 0};
      Words<int{sizeof(T)}> words[kMost] = {};  // four elements
      if (offset < 0) {
#pragma unroll
        for (int b = 0; b < kMost; ++b) {
          if (b < count() && inside)
            words[b] = *reinterpret_cast<const Words<int{sizeof(T)}>*>(op.embedding + Index{token(b)} * op.hidden + i);
        }
      } else {
        const T* const first = narrow_residual(offset, 0) + i;
        const unsigned stride = static_cast<unsigned>(residual_bytes<T>(op.hidden)) / sizeof(T);
        await([&] {
#pragma unroll
          for (int b = 0; b < kMost; ++b) {
            if (b < count() && inside) words[b] = look<int{sizeof(T)}>(first + static_cast<unsigned>(b) * stride);
          }
          return sent(words);
        });
      }
#pragma unroll
      for (int b = 0; b < kMost; ++b) {
        if (b >= count()) break;
        const float4 x = four_of<T>(words[b]);
        squares[b] = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares[b]))));
        store4(shared.input + b * input_stride_() + i, {x.x * g.x, x.y * g.y, x.z * g.z, x.w * g.w});
      }
    }
    if constexpr (kMost == 1) {
      // Nobody asks for the sum before the product.
      own_squares = squares[0];
      squares_wait = true;
    } else {
#pragma unroll
      for (int b = 0; b < kMost; ++b) {
        if (b < count()) sum_squares(b, squares[b]);
      }
    }
    meet();
  }
  __device__ __forceinline__ void sum_squares(int b, float own) const {
    const float sum = warp_sum(own);
    if (lane == 0) shared.squares[(squares_toggle * kStreamedSequences + b) * kWarps + warp] = sum;
  }
  // After a barrier that follows the sums.
  __device__ float inverse_rms(int b) const {
    const auto* of_warps =
        reinterpret_cast<const float4*>(shared.squares + (squares_toggle * kStreamedSequences + b) * kWarps);
    float4 sum = of_warps[0];
#pragma unroll
    for (int i = 1; i < kWarps / 4; ++i)
      sum = {sum.x + of_warps[i].x, sum.y + of_warps[i].y, sum.z + of_warps[i].z, sum.w + of_warps[i].w};
    return inverse_root((sum.x + sum.y) + (sum.z + sum.w), op.hidden, op.rms_eps);
  }
  // Exact to a few units in the last place: other blocks wait for what follows, and correctly rounded quotients and
  // roots are calls that cost registers.
  __device__ static float inverse_root(float squares, int width, float eps) {
    return rsqrtf(__fdividef(squares, static_cast<float>(width)) + eps);
  }
  __device__ static float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + expf(-x));
  }

  // input = values of type T sent by other workers, `elements` per sequence.
  __device__ const T* take_sent(int offset, int elements) {
    constexpr int kRun = 16 / int{sizeof(T)};
    const int all = padded_inner<kColumns>(elements) / kRun * count();
    if (kMost == 1 || all <= kReaders)
      take_runs<1>(offset, elements);
    else if (all <= 2 * kReaders)
      take_runs<2>(offset, elements);
    else
      take_runs<4>(offset, elements);
    meet();
    return shared.input;
  }
  // Runs of 16 bytes, kAtOnce per thread. Beyond the last run a thread reads its first one again, which saves a branch.
  template <int kAtOnce>
  __device__ __forceinline__ void take_runs(int offset, int elements) const {
    constexpr int kRun = 16 / int{sizeof(T)};
    const int runs = elements / kRun, padded_runs = padded_inner<kColumns>(elements) / kRun,
              all = padded_runs * count();
    const T* const from = narrow_part(offset, 0, elements);
    for (int first = thread; first < all; first += kReaders * kAtOnce) {
      int b[kAtOnce], run[kAtOnce];
      unsigned place[kAtOnce];
      Words<4> x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int item = first + i * kReaders;
        b[i] = kMost == 1 ? 0 : item / padded_runs;
        run[i] = item - b[i] * padded_runs;
        place[i] = item < all ? static_cast<unsigned>(b[i] * elements + min(run[i], runs - 1) * kRun) : place[0];
      }
      await([&] {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) x[i] = look4(from + place[i]);
        return sent(x);
      });
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kReaders >= all) break;
        auto* to = reinterpret_cast<uint4*>(shared.input + b[i] * input_stride_() + run[i] * kRun);
        *to = run[i] < runs ? uint4{x[i].word[0], x[i].word[1], x[i].word[2], x[i].word[3]} : uint4{0, 0, 0, 0};
      }
    }
  }

  // An input that is there, and one whose columns come in chunks.
  struct Present {
    __device__ void await(int) const {}
  };
  struct Chunks {
    std::uint64_t* barriers;
    unsigned phase;
    int taken = 0;

    __device__ __forceinline__ void await(int end) {
      for (; taken * kChunk<T> < end; ++taken) barrier_wait(barriers + taken, phase);
    }
  };
  // This warp's sums of one row of tiles. `columns` tells which of the input's are there.
  template <TileFormat kFormat, class Columns>
  __device__ __forceinline__ TileSums<T, kFormat> multiply_row(const StreamShare& share, const T* input,
                                                               Columns& columns) {
    constexpr int kTileWidth = tile_columns<T>(kFormat), kSlotTiles = slot_tiles(kFormat);
    const int n = count(), stride = input_stride_(), whole = share.steps / kSlotTiles;  // slots
    TileSums<T, kFormat> mine;
    // Without a first value the compiler would keep what a part of a slot leaves of it, and spill other registers.
    typename TileSums<T, kFormat>::Part part{};
    const auto add = [&]<bool kAll>(int slot) {
      columns.await(min((slot + 1) * kSlotTiles, share.steps) * kTileWidth);
      const T* const x = input + slot * kSlotTiles * kTileWidth;
      part.template load<kAll>(TileSums<T, kFormat>::tile_of(reader.take() + warp * tile_bytes(kFormat), lane), x,
                               share.steps - slot * kSlotTiles - warp, lane);
      mine.template add<kMost>(part, x, stride, n);
      reader.give_back(gives_back);
    };
#pragma unroll 1
    for (int slot = 0; slot < whole; ++slot) add.template operator()<true>(slot);
    if (whole * kSlotTiles < share.steps) add.template operator()<false>(whole);
    return mine;
  }
  // What this lane multiplies with its first tile.
  template <TileFormat kFormat>
  __device__ __forceinline__ const T* own_part(const T* input) const {
    return TileSums<T, kFormat>::input_of(input + warp * tile_columns<T>(kFormat), input_stride_(), count(), lane);
  }
  // Calls finish(first, tiles, sums) on all threads with each warp's sums of at most `at_once` tiles of the share,
  // where `first` counts from its first.
  template <TileFormat kFormat, class Finish, class Columns = Present>
  __device__ void multiply(const StreamShare& share, const Finish& finish, int at_once, const T* input,
                           Columns columns = {}) {
    const T* const own_input = own_part<kFormat>(input);
    for (int first = 0; first < share.count; first += at_once) {
      const int tiles = min(at_once, share.count - first), n = count();
      float* sums = shared.sums + toggle * kWarps * kSumStride;
      toggle ^= 1;
      for (int t = 0; t < tiles; ++t)
        multiply_row<kFormat>(share, own_input, columns).store(sums + warp * kSumStride + t * kTileRows * n, n, lane);
      store_squares();
      meet();
      finish(first, tiles, sums);
    }
  }
  __device__ __forceinline__ void store_squares() {
    if (!squares_wait) return;
    sum_squares(0, own_squares);
    squares_wait = false;
  }
  __device__ int most_at_once() const {
    return kSums / (kTileRows * count());
  }
  // Four threads add up one value over the warps; all four return the sum.
  __device__ float total(const float* sums, int value) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w += 4) sum += sums[(w + thread % 4) * kSumStride + value];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
  // The sums of a pass are numbered by tile, sequence and row; four threads have one of them.
  struct Value {
    int row, b;
  };
  __device__ Value own_value() const {
    const int value = thread / 4, block = value / kTileRows, n = count();
    return {block / n * kTileRows + value % kTileRows, block % n};
  }
  // Calls each(row, sequence, sum, sends) on all threads; `sends` is true on one of the four of a value. Tiles follow
  // each other.
  template <class Each>
  __device__ auto rows(const StreamShare& share, const Each& each) {
    return [this, each, begin = share.first](int first, int tiles, const float* sums) {
      const auto [row, b] = own_value();
      const float sum = total(sums, thread / 4);
      each((begin + first) * kTileRows + row, b, sum, thread % 4 == 0 && row < tiles * kTileRows);
    };
  }

  __device__ StreamShare next_share() {
    return shared.shares[product++];
  }

  // The residual at `offset`, or the embedding; may still be unsent.
  __device__ float look_at_residual(int offset, int b, int row) const {
    if (offset < 0) return row < op.hidden ? widen(op.embedding[Index{token(b)} * op.hidden + row]) : 0.0f;
    return __uint_as_float(look1(wide_residual(offset, b) + row).word[0]);
  }
  __device__ float residual(int offset, int b, int row) const {
    float x = 0;
    await([&] {
      x = look_at_residual(offset, b, row);
      return __float_as_uint(x) != kUnsent;
    });
    return x;
  }

  __device__ void project(const StreamedLayer& layer, int entering, int elements) {
    const auto share = next_share();
    if (share.count == 0) return;
    take_residual(entering, layer.mixer_gain);
    end_phase(StepPhase::Residual);
    multiply<kLayers>(share,
                      rows(share,
                           [&](int row, int b, float sum, bool sends) {
                             if (sends) send(floats(layer.projected, b, elements) + row, sum * inverse_rms(b));
                           }),
                      most_at_once(), shared.input);
    end_phase(StepPhase::Project);
  }

  // Prefetches the state that advance() reads, before its inputs arrive.
  __device__ void prefetch_state(const StreamedLayer& layer) const {
    const int groups = (op.width + kGroupColumns - 1) / kGroupColumns, all = count() * op.channels * groups;
    const int each = (all + op.workers - 1) / op.workers, g = worker * each + warp, mode = lane / 4;
    if (warp >= each || g >= all || mode >= op.modes || lane % 4 > 1) return;
    const int b = g / (op.channels * groups), gate = g / groups % op.channels * op.modes + mode;
    const Index place = layer.state + ((Index{gate} * 2 + lane % 4) * op.width + g % groups * kGroupColumns) * 4;
    prefetch(op.sequence[b].entering + place);
    prefetch(layer.modal + gate * 8);
  }

  // Gates, blend, recurrence and readout; each warp takes a few values of a channel.
  __device__ void advance(const StreamedLayer& layer) {
    const int groups = (op.width + kGroupColumns - 1) / kGroupColumns, all = count() * op.channels * groups;
    const int values = op.channels * op.width, mixed = (values + 7) / 8 * 8;
    // Adjacent groups go to the same worker: they share lines of the exchange.
    const int each = (all + op.workers - 1) / op.workers, end = min(all, (worker + 1) * each);
    for (int g = worker * each + warp; g < end; g += kWarps) {
      const int b = g / (op.channels * groups), k = g / groups % op.channels;
      const int mode = lane / 4, column = g % groups * kGroupColumns + lane % 4 * 2;
      const bool used = mode < op.modes, inside = column < op.width;
      const int gate = k * op.modes + (used ? mode : 0);
      const Index place = layer.state + ((Index{gate} * 2) * op.width + (inside ? column : 0)) * 4;
      const float2 re = *reinterpret_cast<const float2*>(op.sequence[b].entering + place);
      const float2 im = *reinterpret_cast<const float2*>(op.sequence[b].entering + place + op.width * 4);
      const float4 turn = reinterpret_cast<const float4*>(layer.modal)[gate * 2];
      const float4 rest = reinterpret_cast<const float4*>(layer.modal)[gate * 2 + 1];
      const float blend = layer.blend[k];

      const float* from = floats(layer.projected, b, op.mixer_rows);
      const float* v0 = from + k * op.width;
      Words<2> own, norm;
      Words<1> gates[3];
      await([&] {
        norm = look2(v0 + (lane * 2 < op.width ? lane * 2 : 0));
        own = look2(v0 + (inside ? column : 0));
#pragma unroll
        for (int i = 0; i < 3; ++i) gates[i] = look1(from + values + i * op.channels * op.modes + gate);
        return sent(own) & sent(norm) & sent(gates);
      });
      const auto square = [](const Words<2>& w) {
        const float x = __uint_as_float(w.word[0]), y = __uint_as_float(w.word[1]);
        return fmaf(x, x, y * y);
      };
      float squares = lane * 2 < op.width ? square(norm) : 0.0f;
      for (int p = lane * 2 + 64; p < op.width; p += 64) {
        await([&] {
          norm = look2(v0 + p);
          return sent(norm);
        });
        squares += square(norm);
      }
      const float scale = cuda::blend_scale(blend, inverse_root(warp_sum(squares), op.width, op.value_eps));
      const float write = 2 * sigmoid(__uint_as_float(gates[0].word[0]) + rest.y);
      const float read = 2 * sigmoid(__uint_as_float(gates[1].word[0]) + rest.z);
      const float kept = sigmoid(-(__uint_as_float(gates[2].word[0]) + rest.w));  // exp(-softplus)
      const float cosine = kept * turn.x, sine = kept * turn.y;
      float z[2];
      float2 new_re, new_im;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float a = i ? re.y : re.x, c = i ? im.y : im.x;
        const float written = write * scale * __uint_as_float(own.word[i]);
        const float x = fmaf(cosine, a, fmaf(-sine, c, written)), y = fmaf(sine, a, cosine * c);
        (i ? new_re.y : new_re.x) = x;
        (i ? new_im.y : new_im.x) = y;
        z[i] = used ? read * fmaf(x, turn.z, fmaf(-y, turn.w, -rest.x * written)) : 0.0f;
      }
      if (used && inside) {
        *reinterpret_cast<float2*>(op.sequence[b].leaving + place) = new_re;
        *reinterpret_cast<float2*>(op.sequence[b].leaving + place + op.width * 4) = new_im;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) z[i] += __shfl_xor_sync(0xffffffffu, z[i], step);
      }
      T* to = narrow_part(layer.mixed, b, mixed);
      if (mode == 0 && inside) send_pair(to + k * op.width + column, z[0], z[1]);
      if (k == op.channels - 1 && g % groups == groups - 1 && values + 2 * lane < mixed)
        send_pair(to + values + 2 * lane, 0, 0);
    }
  }

  __device__ const float2* turns_of(const StreamedLayer& layer, int b) const {
    constexpr int kEach = kMost == 1 ? 1 : kStreamedSequences;
    return shared.turns + ((layer.window == 0 ? 1 : 0) * kEach + b) * (kRowMaxColumns / 2);
  }

  __device__ static int seen_by(const StreamedLayer& layer, Index position) {
    return static_cast<int>(layer.window > 0 && position >= layer.window ? layer.window : position + 1);
  }
  // The shares of a head that sees `seen` positions: positions of each, and how many there are.
  struct Cut {
    int positions, count;
  };
  __device__ static Cut cut(const StreamedLayer& layer, int seen) {
    const int equal = (seen + layer.most_shares - 1) / layer.most_shares;
    const int positions = (equal + kLeastShare - 1) / kLeastShare * kLeastShare;
    return {positions, (seen + positions - 1) / positions};
  }
  __device__ int attention_elements(const StreamedLayer& layer) const {
    return layer.heads * layer.most_shares * (layer.head_dim + 4);
  }

  // Row of the position `before` this token's. Without a remainder of 64 bits, which is a call and costs registers.
  __device__ static int row_of(const StreamedLayer& layer, const StreamedSequence& sequence, int before) {
    if (layer.ring == 0) return static_cast<int>(sequence.position) - before;
    const int row = sequence.newest - before;
    return row < 0 ? row + layer.ring : row;
  }
  // Prefetches keys and values of attend()'s first item, before its query arrives.
  __device__ void prefetch_caches(const StreamedLayer& layer) const {
    const auto& sequence = op.sequence[0];
    const int seen = seen_by(layer, sequence.position);
    const auto [share, used] = cut(layer, seen);
    if (worker >= layer.heads * used) return;
    const int head = worker / used, begin = worker % used * share,
              rows = min(min(share, seen - begin), kMostPrefetched);
    const Index row_bytes = Index{layer.kv_heads} * layer.head_dim * Index{sizeof(T)};
    const Index column = Index{head / (layer.heads / layer.kv_heads)} * layer.head_dim * Index{sizeof(T)};
    const int first_row = row_of(layer, sequence, seen - 1 - begin);
    for (int i = thread; i < 2 * rows; i += kReaders) {
      int row = first_row + i / 2;
      if (layer.ring > 0 && row >= layer.ring) row -= layer.ring;
      const Index from = i % 2 ? layer.values + layer.values_per_row * sequence.capacity
                               : layer.keys + layer.keys_per_row * sequence.capacity;
      prefetch(sequence.rows + from + row * row_bytes + column);
    }
  }

  // Attention of one head of one sequence over one share of the positions, by the whole block.
  template <int kLanes>
  __device__ void attend(const StreamedLayer& layer) {
    using Part = LanePart<T, true>;
    constexpr int kSize = Part::kSize, kGroups = 32 / kLanes, kBatch = 2;
    const int d = layer.head_dim, half = d / 2;
    const int query_width = layer.heads * d, row_width = layer.kv_heads * d;
    const int elements = (query_width + 2 * row_width + kTileRows - 1) / kTileRows * kTileRows;
    int item = worker;
    for (int b = 0; b < count(); ++b) {
      const auto& sequence = op.sequence[b];
      const int seen = seen_by(layer, sequence.position);
      const auto [share, used] = cut(layer, seen);
      for (; item < layer.heads * used; item += op.workers) {
        const int head = item / used, index = item % used, kv_head = head / (layer.heads / layer.kv_heads);
        const bool last = index == used - 1;
        const float* from = floats(layer.projected, b, elements);
        const float2* turns = turns_of(layer, b);
        T* keys =
            reinterpret_cast<T*>(sequence.rows + layer.keys + layer.keys_per_row * sequence.capacity) + kv_head * d;
        T* values =
            reinterpret_cast<T*>(sequence.rows + layer.values + layer.values_per_row * sequence.capacity) + kv_head * d;
        meet();
        // The rotated query; for the last share also the new key, rotated, and the new value.
        if (thread < 3 * half) {
          const int what = thread / half, i = thread % half;
          const float* x = from + (what == 0   ? head * d
                                   : what == 1 ? query_width + kv_head * d
                                               : query_width + row_width + kv_head * d);
          if (what == 0 || last) {
            Words<1> a, c;
            await([&] {
              a = look1(x + i);
              c = look1(x + i + half);
              return sent(a) & sent(c);
            });
            const float first = __uint_as_float(a.word[0]), second = __uint_as_float(c.word[0]);
            const float2 turn = what == 2 ? float2{1, 0} : turns[i];
            const float turned[2] = {fmaf(first, turn.x, -second * turn.y), fmaf(second, turn.x, first * turn.y)};
            if (what == 0) {
              const float scale = rsqrtf(static_cast<float>(d)) * kScoreUnit<T>;
              shared.query[i] = turned[0] * scale;
              shared.query[i + half] = turned[1] * scale;
            } else {
              T* to = shared.fresh + (what - 1) * kRowMaxColumns;
              to[i] = narrow<T>(turned[0]);
              to[i + half] = narrow<T>(turned[1]);
            }
          }
        }
        meet();
        if (last && head % (layer.heads / layer.kv_heads) == 0 && warp < 2) {
          T* to = (warp == 0 ? keys : values) + Index{row_of(layer, sequence, 0)} * row_width;
          for (int i = lane; i < d; i += 32) to[i] = shared.fresh[warp * kRowMaxColumns + i];
        }

        const int begin = index * share, total_rows = min(share, seen - begin);
        const int cached = last ? total_rows - 1 : total_rows;
        const int first_row = row_of(layer, sequence, seen - 1 - begin);
        const int place = lane % kLanes, group = warp * kGroups + lane / kLanes;
        float query[kSize];
#pragma unroll
        for (int c = 0; c < kSize; ++c) query[c] = place * kSize + c < d ? shared.query[place * kSize + c] : 0.0f;
        WeightedSum<T, kSize> mine;
        for (int base = 0; base < total_rows; base += kWarps * kGroups * kBatch) {
          Part key[kBatch], value[kBatch];
#pragma unroll
          for (int u = 0; u < kBatch; ++u) {
            const int r = base + u * kWarps * kGroups + group;
            key[u] = value[u] = Part::zero();
            if (r < total_rows) {
              int row = first_row + r;
              if (layer.ring > 0 && row >= layer.ring) row -= layer.ring;
              key[u] = Part::load(r < cached ? keys + Index{row} * row_width : shared.fresh, place, d);
              value[u] =
                  Part::load(r < cached ? values + Index{row} * row_width : shared.fresh + kRowMaxColumns, place, d);
            }
          }
          add_rows<kLanes>(mine, query, key, value,
                           [&](int u) { return base + u * kWarps * kGroups + group < total_rows; });
        }
        // Reduces over the groups of a warp, then over the warps.
        merge_groups<kLanes>(mine);
        float* parts = shared.sums;
        if (lane < kLanes) {
#pragma unroll
          for (int c = 0; c < kSize; ++c) parts[warp * kPartStride + lane * kSize + c] = mine.out[c];
          parts[warp * kPartStride + kRowMaxColumns] = mine.largest;
          parts[warp * kPartStride + kRowMaxColumns + 1] = mine.sum;
        }
        meet();
        if (thread < d) {
          WeightedSum<T, 1> whole;
#pragma unroll
          for (int w = 0; w < kWarps; ++w) {
            const float out[1] = {parts[w * kPartStride + thread]};
            whole.merge(parts[w * kPartStride + kRowMaxColumns], parts[w * kPartStride + kRowMaxColumns + 1], out);
          }
          float* to = floats(layer.mixed, b, attention_elements(layer)) + (head * layer.most_shares + index) * (d + 4);
          send(to + thread, whole.out[0]);
          if (thread == 0) {
            send(to + d, whole.largest);
            send(to + d + 1, whole.sum);
          }
        }
      }
      item -= layer.heads * used;
    }
  }

  // input = the combined shares of each head, four columns per thread at once.
  __device__ const T* take_attention(const StreamedLayer& layer) {
    const int d = layer.head_dim, runs = layer.heads * d / 4, padded = padded_inner<kColumns>(layer.heads * d) / 4;
    for (int item = thread; item < padded * count(); item += kReaders) {
      const int b = item / padded, run = item % padded;
      float4 out{0, 0, 0, 0};
      if (run < runs) {
        const int head = run * 4 / d, column = run * 4 % d;
        const int used = cut(layer, seen_by(layer, op.sequence[b].position)).count;
        const float* from = floats(layer.mixed, b, attention_elements(layer)) + head * layer.most_shares * (d + 4);
        WeightedSum<T, 4> whole;
        for (int s = 0; s < used; ++s, from += d + 4) {
          Words<4> x;
          Words<2> ends;
          await([&] {
            x = look4(from + column);
            ends = look2(from + d);
            return sent(x) & sent(ends);
          });
          const float part_out[4] = {__uint_as_float(x.word[0]), __uint_as_float(x.word[1]), __uint_as_float(x.word[2]),
                                     __uint_as_float(x.word[3])};
          whole.merge(__uint_as_float(ends.word[0]), __uint_as_float(ends.word[1]), part_out);
        }
        const float inverse = __fdividef(1.0f, whole.sum);
        out = {whole.out[0] * inverse, whole.out[1] * inverse, whole.out[2] * inverse, whole.out[3] * inverse};
      }
      store4(shared.input + b * input_stride_() + run * 4, out);
    }
    meet();
    return shared.input;
  }

  // Takes an input and adds its product to the residual, which is read while the input is in flight. take() returns the
  // input.
  template <class Take, class Columns = Present>
  __device__ void add_product(float scale, int entering, int leaving, StepPhase waits, StepPhase multiplies,
                              const Take& take, const Columns& columns = {}) {
    const auto share = next_share();
    if (share.count == 0) return;
    const auto [own_row, own_b] = own_value();
    const int own = share.first * kTileRows + own_row;
    const bool used = own_row < min(most_at_once(), share.count) * kTileRows;
    const float before = used && thread % 4 == 0 ? look_at_residual(entering, own_b, own) : 0.0f;
    const T* const input = take();
    end_phase(waits);
    multiply<kLayers>(share,
                      rows(share,
                           [&](int row, int b, float sum, bool sends) {
                             float x = 0;
                             if (sends) {
                               const bool known = row == own && __float_as_uint(before) != kUnsent;
                               x = fmaf(scale, sum, known ? before : residual(entering, b, row));
                             }
                             if constexpr (kNarrows) {
                               const float next = __shfl_down_sync(0xffffffffu, x, 4);
                               if (sends && row % 2 == 0) send_pair(narrow_residual(leaving, b) + row, x, next);
                             }
                             if (sends) send(wide_residual(leaving, b) + row, x);
                           }),
                      most_at_once(), input, columns);
    end_phase(multiplies);
  }

  __device__ void feed_forward(const StreamedLayer& layer) {
    const auto up = next_share();
    const int hidden = (op.units + 7) / 8 * 8;
    // A single sequence's units are sent tile by tile, and others take them meanwhile.
    const bool takes = kMost == 1 && shared.shares[product].count > 0;
    const auto begin_taking = [&] {
      if (takes && thread == 0) barrier_arrive(shared.chunks + kMostChunks);
    };
    if (up.count == 0) begin_taking();
    if (up.count > 0) {
      take_residual(layer.middle, layer.ffn_gain);
      begin_taking();
      end_phase(StepPhase::Middle);
      const auto finish = [&](int first, int tiles, const float* sums) {
        if constexpr (kMost == 1) {
          if (warp != first % kWarps) return;
          const int unit = lane / 4;
          const float inverse = inverse_rms(0);
          const float gate = total(sums, unit) * inverse, linear = total(sums, unit + 8) * inverse;
          const float x = gate * sigmoid(gate) * linear, next = __shfl_down_sync(0xffffffffu, x, 4);
          if (lane % 8 == 0)
            send_pair(narrow_part(layer.hidden, 0, hidden) + (up.first + first * up.stride) * 8 + unit, x, next);
          return;
        }
        const int n = count(), item = thread / 4, b = item / (tiles * 8), tile = item / 8 % tiles, unit = item % 8;
        if (warp * 8 >= tiles * 8 * n) return;
        const int value = (tile * n + b) * kTileRows + unit;
        const float inverse = inverse_rms(b);
        const float gate = total(sums, value) * inverse, linear = total(sums, value + 8) * inverse;
        const float x = gate * sigmoid(gate) * linear, next = __shfl_down_sync(0xffffffffu, x, 4);
        if (thread % 8 == 0)
          send_pair(narrow_part(layer.hidden, b, hidden) + (up.first + (first + tile) * up.stride) * 8 + unit, x, next);
      };
      multiply<kLayers>(up, finish, kMost == 1 ? 1 : most_at_once(), shared.input);
      end_phase(StepPhase::GateUp);
    }
    if constexpr (kMost == 1) {
      add_product(
          1, layer.middle, layer.leaving, StepPhase::Hidden, StepPhase::Down, [&] { return shared.hidden; },
          Chunks{shared.chunks, hidden_phase});
      if (takes) hidden_phase ^= 1;
    } else {
      add_product(1, layer.middle, layer.leaving, StepPhase::Hidden, StepPhase::Down,
                  [&] { return take_sent(layer.hidden, hidden); });
    }
  }

  __device__ void head(int entering) {
    const auto share = next_share();
    if (share.count == 0) return;
    take_residual(entering, op.last_gain);
    LogitKey best = 0;
    multiply<kHead>(share,
                    rows(share,
                         [&](int row, int b, float sum, bool sends) {
                           if (!sends || row >= op.vocabulary) return;
                           const float logit = sum * inverse_rms(b);
                           op.logits[Index{b} * op.vocabulary + row] = logit;
                           const auto key = logit_key(logit, row);
                           best = key > best ? key : best;
                         }),
                    most_at_once(), shared.input);
    // All values of a thread belong to one sequence.
    meet();
    auto* all = reinterpret_cast<LogitKey*>(shared.sums);
    if (thread % 4 == 0) all[thread / 4] = best;
    meet();
    if (thread < count()) {
      LogitKey top = 0;  // `best` may belong to another sequence
      for (int i = 0; i < most_at_once() * kTileRows; ++i) {
        const auto key = all[(i / kTileRows * count() + thread) * kTileRows + i % kTileRows];
        top = key > top ? key : top;
      }
      atomicMax(op.keys + thread, top);
    }
  }

  __device__ void run() {
    if (op.cycles != nullptr) since = clock64();
    copy_words(op.layer, shared.layers, op.layers);
    for (int i = thread; i < Shared<T, kColumns>::products(op.layers); i += kReaders)
      shared.shares[i] = op.shares[i * op.workers + worker];
    meet();
    // Angles are reduced in double: at position 100,000 a float has too few digits.
    bool known[2] = {};
    for (int l = 0; l < op.layers; ++l) {
      const auto& layer = shared.layers[l];
      bool& kind = known[layer.window == 0];
      if (!layer.attends || kind) continue;
      kind = true;  // layers of a kind share their angles
      const int half = layer.head_dim / 2;
      for (int i = thread; i < half * count(); i += kReaders) {
        double s, c;
        sincos(static_cast<double>(op.sequence[i / half].position) * layer.frequencies[i % half], &s, &c);
        const_cast<float2*>(turns_of(layer, i / half))[i % half] = {static_cast<float>(c), static_cast<float>(s)};
      }
    }
    end_phase(StepPhase::Begin);
    int entering = -1;
    for (int l = 0; l < op.layers; ++l) {
      const StreamedLayer& layer = shared.layers[l];
      if (layer.attends) {
        const int query_width = layer.heads * layer.head_dim,
                  rows_out = query_width + 2 * layer.kv_heads * layer.head_dim;
        prefetch_caches(layer);
        project(layer, entering, (rows_out + kTileRows - 1) / kTileRows * kTileRows);
        if (layer.head_dim * 2 <= kRowMaxColumns)
          attend<kRowMaxColumns* int{sizeof(T)} / 32>(layer);
        else
          attend<kRowMaxColumns* int{sizeof(T)} / 16>(layer);
        end_phase(StepPhase::Attend);
        add_product(1, entering, layer.middle, StepPhase::Mixed, StepPhase::Output,
                    [&] { return take_attention(layer); });
      } else {
        prefetch_state(layer);
        project(layer, entering, op.mixer_rows);
        advance(layer);
        end_phase(StepPhase::Advance);
        add_product(op.out_scale, entering, layer.middle, StepPhase::Mixed, StepPhase::Output,
                    [&] { return take_sent(layer.mixed, (op.channels * op.width + 7) / 8 * 8); });
      }
      feed_forward(layer);
      entering = layer.leaving;
    }
    head(entering);
    end_phase(StepPhase::Head);
  }
};

// Copies a worker's stream into its ring, one row of tiles after the other.
template <class T, TileFormat kLayers, TileFormat kHead>
__device__ void stream_weights(const StreamedStep<T>& op, const TileRing& ring, int worker) {
  RingPlace place{ring}, landed{ring};
  // A slot must have landed before it is filled again: `landed` waits for a phase that is not overtaken.
  int on_their_way = 0;
  const auto* from = reinterpret_cast<const unsigned char*>(op.streams) + op.stream_begin[worker];
  const int products = 4 * op.layers + 1;
  StreamShare next = op.shares[worker];
  for (int p = 0; p < products; ++p) {
    const StreamShare share = next;
    if (p + 1 < products) next = op.shares[(p + 1) * op.workers + worker];
    const TileFormat format = p + 1 < products ? kLayers : kHead;
    const int slot = slot_tiles(format), tile = tile_bytes(format);
    const SlotsInFlight pace = op.pace[p + 1 < products ? p % 4 : 4][share.more];
    const int fed = min(int{pace.fed}, ring.count), hungry = min(int{pace.hungry}, ring.count - 1),
              until = min(int{pace.until}, ring.count - 1);
    for (int t = 0; t < share.count; ++t) {
      for (int step = 0; step < share.steps; step += slot) {
        const int bytes = min(slot, share.steps - step) * tile;
        const int most = hungry > fed && place.holds_at_most(until) ? hungry : fed;
        for (; on_their_way >= most; --on_their_way) {
          landed.await_filled();
          landed.advance();
        }
        ++on_their_way;
        place.fill(from, static_cast<unsigned>(bytes));
        from += bytes;
      }
    }
  }
}

}  // namespace essh::cuda::device
