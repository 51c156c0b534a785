#include "essh/kernels/cuda/matmul_plans.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "essh/device/cuda/check.h"
#include "essh/device/cuda/library.h"
#include "essh/device/cuda/profile.h"

namespace essh::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;
constexpr int kCandidates = 8;
constexpr Index kFewColumns = 1024;  // at most those of a decoding step
constexpr const char* kTrials = "trials of matrix products";

struct Blas {
  Library library{{ESSH_CUBLASLT, ESSH_CUDA_LIBRARIES "/" ESSH_CUBLASLT}, "a CUDA device"};
  decltype(&cublasLtCreate) create = library.find("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy = library.find("cublasLtDestroy");
  decltype(&cublasLtGetStatusString) status_string = library.find("cublasLtGetStatusString");
  decltype(&cublasLtMatmul) matmul = library.find("cublasLtMatmul");
  decltype(&cublasLtMatmulAlgoCheck) algorithm_check = library.find("cublasLtMatmulAlgoCheck");
  decltype(&cublasLtMatmulAlgoGetHeuristic) algorithm_heuristic = library.find("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmulDescCreate) operation_create = library.find("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) operation_destroy = library.find("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) operation_set = library.find("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = library.find("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = library.find("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = library.find("cublasLtMatmulPreferenceSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) layout_create = library.find("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = library.find("cublasLtMatrixLayoutDestroy");
};
const Blas& blas() {
  static const Blas loaded;
  return loaded;
}

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorKind::Device, "cuBLASLt, {}: {}", what, blas().status_string(status));
}

cudaDataType data_type(MatmulType type) {
  return type == MatmulType::BFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}
std::size_t element_size(MatmulType type) {
  return type == MatmulType::BFloat16 ? 2 : 4;
}

// Alignment of an operand's columns in bytes, at most 16.
std::uint32_t alignment(const void* data, Index stride, std::size_t element) {
  const auto bits = reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride) * element | 16u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}
std::uint32_t alignment(const Matmul& p) {
  const auto in = element_size(p.input), out = element_size(p.output);
  return std::min({alignment(p.left.data, p.left.stride, in), alignment(p.right.data, p.right.stride, in),
                   alignment(p.addend, p.addend_stride, out), alignment(p.result, p.result_stride, out)});
}

bool is_tuned(const Matmul& p) {
  return !p.columns_vary || p.columns > MatmulPlans::kUntunedColumns;
}

// The most columns of the products that share an algorithm with this one.
Index most_columns(const Matmul& p) {
  return static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(p.columns)));
}

// Products of one name use one algorithm where they can.
std::string shape_name(const Matmul& p) {
  const auto columns = p.columns_vary ? fmt::format("<={}", most_columns(p)) : fmt::format("{}", p.columns);
  return fmt::format("matmul {}{} {}{} {}x{}x{} {} a{}", p.input == MatmulType::BFloat16 ? "b" : "f",
                     p.output == MatmulType::BFloat16 ? "b" : "f", p.left.turned ? "t" : "n",
                     p.right.turned ? "t" : "n", p.rows, columns, p.inner, p.beta != 0 ? "add" : "set", alignment(p));
}

std::string hexadecimal(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const auto word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}
bool parse(const std::string& text, cublasLtMatmulAlgo_t& algorithm) {
  constexpr std::size_t kDigits = 16;
  if (text.size() != std::size(algorithm.data) * kDigits) return false;
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i) {
    char* end = nullptr;
    const auto digits = text.substr(i * kDigits, kDigits);
    algorithm.data[i] = std::strtoull(digits.c_str(), &end, 16);
    if (*end != 0) return false;
  }
  return true;
}

// Mean time of a few calls of `body`, each after one of `before`.
template <class Before, class Body>
float milliseconds(Stream& stream, const Before& before, const Body& body) {
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  constexpr int kCalls = 2;
  float total = 0;
  for (int i = 0; i < kCalls; ++i) {
    before();
    check(cudaEventRecord(start, stream.handle()), "cudaEventRecord");
    body();
    check(cudaEventRecord(end, stream.handle()), "cudaEventRecord");
    check(cudaEventSynchronize(end), "matrix product");
    float time = 0;
    check(cudaEventElapsedTime(&time, start, end), "cudaEventElapsedTime");
    total += time;
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return total / kCalls;
}

}  // namespace

struct MatmulPlans::Context {
  cublasLtHandle_t handle = nullptr;
  Buffer workspace{Device::Cuda, kWorkspace, "workspace of the matrix products"};

  Context() { check_blas(blas().create(&handle), "create"); }
  ~Context() { blas().destroy(handle); }
};

struct MatmulPlans::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, addend = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Plan(const Matmul& p) {
    check_blas(blas().operation_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    const auto turn = [&](cublasLtMatmulDescAttributes_t attribute, bool turned) {
      const cublasOperation_t value = turned ? CUBLAS_OP_T : CUBLAS_OP_N;
      check_blas(blas().operation_set(operation, attribute, &value, sizeof(value)), "transpose");
    };
    turn(CUBLASLT_MATMUL_DESC_TRANSA, p.left.turned);
    turn(CUBLASLT_MATMUL_DESC_TRANSB, p.right.turned);
    const auto layout = [](cublasLtMatrixLayout_t& to, MatmulType type, Index rows, Index columns, Index stride) {
      check_blas(blas().layout_create(&to, data_type(type), static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), stride),
                 "layout");
    };
    const auto operand = [&](cublasLtMatrixLayout_t& to, const Matmul::Operand& o, Index rows, Index columns) {
      layout(to, p.input, o.turned ? columns : rows, o.turned ? rows : columns, o.stride);
    };
    operand(left, p.left, p.rows, p.inner);
    operand(right, p.right, p.inner, p.columns);
    layout(addend, p.output, p.rows, p.columns, p.addend_stride);
    layout(result, p.output, p.rows, p.columns, p.result_stride);
  }
  ~Plan() {
    for (auto one : {left, right, addend, result}) blas().layout_destroy(one);
    blas().operation_destroy(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasStatus_t run(const Context& context, Stream& stream, const Matmul& p, const cublasLtMatmulAlgo_t& with,
                     const void* from, cublasLtMatrixLayout_t from_layout, void* to,
                     cublasLtMatrixLayout_t to_layout) const {
    return blas().matmul(context.handle, operation, &p.alpha, p.left.data, left, p.right.data, right, &p.beta, from,
                         from_layout, to, to_layout, &with, context.workspace.as<void>(), kWorkspace, stream.handle());
  }
};

MatmulPlans::MatmulPlans(Stream& stream) : stream_(stream), context_(std::make_unique<Context>()) {}
MatmulPlans::~MatmulPlans() = default;

void MatmulPlans::multiply(const Matmul& p) {
  const auto& found = plan(p);
  const ProfileScope timed(stream_, stream_.profile() ? shape_name(p).c_str() : "");
  check_blas(found.run(*context_, stream_, p, found.algorithm, p.addend, found.addend, p.result, found.result),
             "product");
}

MatmulPlans::Plan& MatmulPlans::plan(const Matmul& p) {
  const Key key = {static_cast<Index>(p.input) * 2 + static_cast<Index>(p.output),
                   static_cast<Index>(p.left.turned) * 2 + static_cast<Index>(p.right.turned),
                   p.rows,
                   p.columns,
                   p.inner,
                   p.left.stride,
                   p.right.stride,
                   p.addend_stride,
                   p.result_stride,
                   static_cast<Index>(p.beta != 0) * 2 + static_cast<Index>(p.columns_vary),
                   p.addend == p.result,
                   alignment(p)};
  auto& place = plans_[key];
  if (!place) {
    auto fresh = std::make_unique<Plan>(p);
    choose(p, *fresh);
    place = std::move(fresh);
  }
  return *place;
}

void MatmulPlans::choose(const Matmul& p, Plan& plan) {
  const auto align = alignment(p);
  const auto name = shape_name(p);
  auto& choices = is_tuned(p) ? stream_.choices() : suggested_;
  const auto known = choices.find(name);
  if (known != choices.end() && parse(known->second, plan.algorithm)) {
    cublasLtMatmulHeuristicResult_t facts{};
    if (blas().algorithm_check(context_->handle, plan.operation, plan.left, plan.right, plan.addend, plan.result,
                               &plan.algorithm, &facts) == CUBLAS_STATUS_SUCCESS &&
        facts.workspaceSize <= kWorkspace)
      return;
  }

  // The suggestion must not depend on which of the products came first.
  if (!is_tuned(p) && known == choices.end() && p.columns < most_columns(p) && !p.right.turned) {
    auto largest = p;
    largest.columns = most_columns(p);
    Plan suggested(largest);
    choose(largest, suggested);
    return choose(p, plan);
  }

  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(blas().preference_create(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_blas(blas().preference_set(preference, attribute, &value, sizeof(value)), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, align);
  cublasLtMatmulHeuristicResult_t candidates[kCandidates] = {};
  int count = 0;
  const auto status = blas().algorithm_heuristic(context_->handle, plan.operation, plan.left, plan.right, plan.addend,
                                                 plan.result, preference, kCandidates, candidates, &count);
  blas().preference_destroy(preference);
  check_blas(status, "choice of an algorithm");
  if (count == 0) fail(ErrorKind::Unsupported, "cuBLASLt has no algorithm for {}", name);
  plan.algorithm = candidates[0].algo;
  if (p.columns_vary && known != choices.end()) return;
  if (!is_tuned(p)) {
    choices[name] = hexadecimal(plan.algorithm);
    return;
  }
  cudaStreamCaptureStatus capturing{};
  check(cudaStreamIsCapturing(stream_.handle(), &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone) return;

  // Trials write to temporary memory; the first one writes to the result if the product overwrites it anyway.
  const Index elements = p.rows * p.columns;
  const auto bytes = element_size(p.output) * static_cast<std::size_t>(elements);
  const bool result_is_free = p.result_stride == p.rows && (p.beta == 0 || p.addend != p.result);
  const Buffer first_result(Device::Cuda, result_is_free ? 0 : bytes, kTrials),
      other_result(Device::Cuda, bytes, kTrials);
  void *const first = result_is_free ? p.result : first_result.as<void>(), *const other = other_result.as<void>();
  cublasLtMatrixLayout_t packed = nullptr;
  check_blas(blas().layout_create(&packed, data_type(p.output), static_cast<std::uint64_t>(p.rows),
                                  static_cast<std::uint64_t>(p.columns), p.rows),
             "layout");
  const auto attempt = [&](const cublasLtMatmulAlgo_t& algorithm, void* to) {
    return plan.run(*context_, stream_, p, algorithm, p.addend, plan.addend, to, packed);
  };
  std::vector<int> valid;
  for (int i = 0; i < count; ++i) {
    if (candidates[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const bool leads = valid.empty();  // others are compared with it
    if (attempt(candidates[i].algo, leads ? first : other) != CUBLAS_STATUS_SUCCESS) continue;
    if (!leads) {
      // Algorithms may differ only in the order of additions.
      const auto [gap, largest] = compare(stream_, p.output, first, other, elements);
      const float tolerance = (p.output == MatmulType::BFloat16 ? 1.6e-2f : 1e-3f) * largest;
      if (!(gap <= tolerance)) continue;
    }
    valid.push_back(i);
  }
  // A decoding step finds the weights of a product in memory, not in the cache where the last trial left them.
  const auto forget = [&] {
    if (p.columns <= kFewColumns) fill_cache(stream_, context_->workspace.as<void>(), kWorkspace);
  };
  // In turns, and the best of each: the GPU may have other work. The library's first suggestion that runs stays unless
  // another is clearly faster.
  constexpr int kRounds = 3;
  constexpr float kClearly = 0.98f;
  std::array<float, kCandidates> best;
  best.fill(INFINITY);
  for (int round = 0; round < kRounds; ++round) {
    for (const int i : valid) {
      auto& time = best[static_cast<std::size_t>(i)];
      time = std::min(time, milliseconds(stream_, forget,
                                         [&] { attempt(candidates[i].algo, i == valid.front() ? first : other); }));
    }
  }
  if (!valid.empty()) {
    const auto time_of = [&](int i) { return best[static_cast<std::size_t>(i)]; };
    const int fastest = *std::ranges::min_element(valid, {}, time_of);
    plan.algorithm = candidates[time_of(fastest) < kClearly * time_of(valid.front()) ? fastest : valid.front()].algo;
  }
  blas().layout_destroy(packed);
  choices[name] = hexadecimal(plan.algorithm);
}

}  // namespace essh::cuda
