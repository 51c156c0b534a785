#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "essh/config/field.h"
#include "essh/model/capacity.h"
#include "essh/model/config.h"

namespace essh {

// The model to train. Sizes of 0 and empty lists keep the preset's values.
struct ModelRecipe {
  std::string preset = "tiny";
  Index vocab_size = 0;
  Index hidden_size = 0;
  Index intermediate_size = 0;
  Index num_hidden_layers = 0;
  std::vector<Index> attention_layers = {};
  bool no_attention = false;
  Index sliding_window = 0;
  Index num_key_value_heads = 0;
  Index spectral_channels = 0;
  Index spectral_modes = 0;
  Index channel_width = 0;
  bool fixed_mixer_width = false;
  double channel_exponent = 0.5;
  double ffn_exponent = 0.8;
  std::string modes = "hankel";
  std::string clock = "input";
  std::string gates = "input";
  bool residual_in_fp32 = true;
  bool slopes = false;
  std::string tier = {};
  std::string start = {};
};

struct DataRecipe {
  std::string path = {};
  std::string task = {};
  Index context = 256;
  Index symbols = 0;
  Index pairs = 64;
  double query_power = 0.01;
  bool noise = true;
};

struct OptimizerRecipe {
  std::string algorithm = "adamw";
  double rate = 1.2e-3;
  double embedding_rate = 1;
  double slope_rate = 0.25;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.95;
  double weight_decay = 0.1;
  double clip = 1;
  std::string schedule = "cosine";
  double warmup = 0.01;
  double floor = 0.1;
  double decay_share = 0.2;
};

struct ElasticRecipe {
  std::string sampling = "fixed";
  double full_share = 0.75;
  bool joint = false;
  double smallest_share = 0;
  double warmup_tokens = 250e6;
  double warmup_share = 1;
  std::vector<double> budgets = {};
  std::vector<double> parameter_targets = {};
  Index budget_channels = 0;
  double ffn_scale = 0.5;
  double mixer_scale = 1;
  double kl = 0.5;
  double label = 1;
  Index ordering_period = 500;
  double ordering_until = 0.8;
  double activation_memory = 0.95;
  std::string teacher = {};
  double calibration_tokens = 0;
};

struct RunRecipe {
  Index steps = 1000;
  Index batch = 16;
  Index micro_batch = 4;
  std::uint64_t seed = 1;
  Index loss_rows = 1024;
  Index validate_every = 100;
  Index validation_windows = 64;
  Index checkpoint_every = 250;
  Index keep = 2;
  std::string nonfinite = "stop";
  std::string precision = "auto";
};

struct RefineRecipe {
  Index steps = 100;
  Index batch = 8;
  double rate = 6e-5;
  double warmup = 0.05;
  std::string decay = "all";
  std::string moments = "fresh";
  std::string schedule = "cosine";
  std::string order = "own";
  double label = 1;
  double kl = 0;
  double tv = 5;
  double full_share = 0;
  std::string sampling = "step";
  std::vector<double> budgets = {};
  double smallest_share = 0;
  double teacher_budget = 1;
};

// One training run, from YAML. Every arm of the paper's ablations is a setting of this struct (bench/arms.json).
struct Recipe {
  ModelRecipe model;
  DataRecipe data;
  OptimizerRecipe optimizer;
  ElasticRecipe elastic;
  RunRecipe run;
  RefineRecipe refine;
};

template <class Visitor>
void fields(Visitor& visit, ModelRecipe& r) {
  constexpr double kMany = 1 << 24;
  visit("preset", r.preset,
        Field{.help = "a model of the program's own: tiny, 370m, 1.5b, dna, synthetic, transformer-370m, ..."});
  visit("vocab_size", r.vocab_size,
        Field{.help = "0: the tokenizer's, rounded up to a multiple of 64", .min = 0, .max = kMany});
  visit("hidden_size", r.hidden_size, Field{.help = "residual width", .min = 0, .max = kMany});
  visit("intermediate_size", r.intermediate_size, Field{.help = "full feed-forward width", .min = 0, .max = kMany});
  visit("num_hidden_layers", r.num_hidden_layers, Field{.help = "blocks", .min = 0, .max = 4096});
  visit("attention_layers", r.attention_layers, Field{.help = "blocks with window attention", .min = 0, .max = 4095});
  visit("no_attention", r.no_attention, Field{.help = "spectral mixers only"});
  visit("sliding_window", r.sliding_window, Field{.help = "positions an attention layer sees", .min = 0, .max = kMany});
  visit("num_key_value_heads", r.num_key_value_heads,
        Field{.help = "heads of keys and values of attention", .min = 0, .max = 65536});
  visit("spectral_channels", r.spectral_channels, Field{.help = "channels of a spectral mixer", .min = 0, .max = 4096});
  visit("spectral_modes", r.spectral_modes, Field{.help = "damped rotations per channel", .min = 0, .max = 1024});
  visit("channel_width", r.channel_width, Field{.help = "values per channel", .min = 0, .max = 65536});
  visit("fixed_mixer_width", r.fixed_mixer_width,
        Field{.help = "channel_width follows spectral_channels, so that channels x values stay as many"});
  visit("channel_exponent", r.channel_exponent, Field{.help = "of the two-rate map", .min = 0, .max = 8});
  visit("ffn_exponent", r.ffn_exponent,
        Field{.help = "of the two-rate map; 0 nests the mixer only", .min = 0, .max = 8});
  visit("modes", r.modes,
        Field{.help = "initial modes: hankel, random, non_oscillatory, shuffled, reversed, uniform_1e-3, uniform_1e-4, "
                      "s4d_lin"});
  visit("clock", r.clock, Field{.help = "input, or fixed: no dependence on the token"});
  visit("gates", r.gates, Field{.help = "input, or neutral: both gates stay at one"});
  visit("residual_in_fp32", r.residual_in_fp32,
        Field{.help = "keep the residual stream in float32 where the arithmetic is bf16"});
  visit("slopes", r.slopes,
        Field{.help = "tensors change with the capacity, along slopes that are trained too; exports contain the sums"});
  visit("tier", r.tier, Field{.help = "train this one capacity as a model of its own (a specialist), e.g. T4"});
  visit("start", r.start, Field{.help = "a model folder to start from instead of initial weights"});
}

template <class Visitor>
void fields(Visitor& visit, DataRecipe& r) {
  visit("path", r.path, Field{.help = "a folder made by `essh prepare`"});
  visit("task", r.task, Field{.help = "mqar or palindrome, generated, instead of a folder"});
  visit("context", r.context, Field{.help = "tokens per sequence", .min = 1, .max = 1 << 24});
  visit("symbols", r.symbols,
        Field{.help = "of a task; 0 for 8192 (mqar) or 64 (palindrome)", .min = 0, .max = 1 << 24});
  visit("pairs", r.pairs, Field{.help = "mqar: keys with their values", .min = 1, .max = 1 << 22});
  visit("query_power", r.query_power,
        Field{.help = "mqar: queries crowd early as place^(query_power - 1)", .min = 0, .max = 1});
  visit("noise", r.noise, Field{.help = "mqar: random tokens between the queries"});
}

template <class Visitor>
void fields(Visitor& visit, OptimizerRecipe& r) {
  visit("algorithm", r.algorithm,
        Field{.help = "adamw, or muon: orthogonalised momentum for the matrices of the blocks, AdamW for the rest"});
  visit("rate", r.rate, Field{.help = "peak learning rate", .min = 0, .max = 10});
  visit("embedding_rate", r.embedding_rate,
        Field{.help = "factor on the rate of the embedding, which is also the output head", .min = 0, .max = 1000});
  visit("slope_rate", r.slope_rate, Field{.help = "factor on the rate of slopes (model.slopes)", .min = 0, .max = 1e3});
  visit("beta1", r.beta1, Field{.help = "AdamW", .min = 0, .max = 0.99999});
  visit("beta2", r.beta2, Field{.help = "AdamW", .min = 0, .max = 0.999999});
  visit("eps", r.eps, Field{.help = "AdamW", .min = 1e-30, .max = 1});
  visit("momentum", r.momentum, Field{.help = "Muon", .min = 0, .max = 0.99999});
  visit("weight_decay", r.weight_decay, Field{.help = "on matrices and zero-lag tables", .min = 0, .max = 10});
  visit("clip", r.clip, Field{.help = "largest gradient norm; 0 is off", .min = 0, .max = 1e9});
  visit("schedule", r.schedule, Field{.help = "cosine, wsd or constant"});
  visit("warmup", r.warmup, Field{.help = "share of the steps in which the rate rises", .min = 0, .max = 1});
  visit("floor", r.floor, Field{.help = "share of the peak at the end", .min = 0, .max = 1});
  visit("decay_share", r.decay_share,
        Field{.help = "wsd: share of the steps in which the rate falls", .min = 0, .max = 1});
}

template <class Visitor>
void fields(Visitor& visit, ElasticRecipe& r) {
  visit("sampling", r.sampling, Field{.help = "fixed, ramp, progressive, gap, adaptive, or dense: full capacity only"});
  visit("full_share", r.full_share,
        Field{.help = "share of micro-batches reserved for full capacity", .min = 0, .max = 1});
  visit("joint", r.joint,
        Field{.help = "a micro-batch below full capacity trains the full one too, on the same tokens: the teacher "
                      "learns"});
  visit("smallest_share", r.smallest_share,
        Field{.help = "share of the micro-batches below full capacity that go to the smallest budget before the others "
                      "are drawn",
              .min = 0,
              .max = 1});
  visit("warmup_tokens", r.warmup_tokens, Field{.help = "full capacity only until then", .min = 0, .max = 1e15});
  visit("warmup_share", r.warmup_share,
        Field{.help = "the same as a share of the run's steps; whichever ends first", .min = 0, .max = 1});
  visit("budgets", r.budgets, Field{.help = "sampled capacities; empty for the paper's ten", .min = 0, .max = 1});
  visit("parameter_targets", r.parameter_targets,
        Field{.help = "instead of budgets: sampled capacities by their parameter counts; up to 1, shares of the full "
                      "count",
              .min = 0,
              .max = 1e15});
  visit("budget_channels", r.budget_channels,
        Field{.help = "counts budgets, those of refine too, in channels of a bank of this many, so that they follow "
                      "model.spectral_channels: 32 for the paper's channel-count arms; 0 is off",
              .min = 0,
              .max = 4096});
  visit("ffn_scale", r.ffn_scale,
        Field{.help = "on feed-forward weight gradients of reduced micro-batches", .min = 0, .max = 100});
  visit("mixer_scale", r.mixer_scale,
        Field{.help = "likewise on all parameters of spectral mixers", .min = 0, .max = 100});
  visit("kl", r.kl, Field{.help = "weight of the distillation from full capacity", .min = 0, .max = 1000});
  visit("label", r.label, Field{.help = "weight of the label loss of reduced micro-batches", .min = 0, .max = 1000});
  visit("ordering_period", r.ordering_period,
        Field{.help = "steps between orderings of the feed-forward units; 0 is off", .min = 0, .max = 1e12});
  visit("ordering_until", r.ordering_until,
        Field{.help = "share of the run after which the order stays", .min = 0, .max = 1});
  visit("activation_memory", r.activation_memory,
        Field{.help = "per-step memory of the running squared activations", .min = 0, .max = 0.999999});
  visit("teacher", r.teacher,
        Field{.help = "a frozen parent that teaches every capacity, the full one too, instead of the current full "
                      "capacity"});
  visit("calibration_tokens", r.calibration_tokens,
        Field{.help = "before the first step, order the feed-forward units of model.start by their importance over so "
                      "many tokens; 0 is off",
              .min = 0,
              .max = 1e15});
}

template <class Visitor>
void fields(Visitor& visit, RunRecipe& r) {
  visit("steps", r.steps, Field{.help = "optimizer steps", .min = 1, .max = 1e12});
  visit("batch", r.batch, Field{.help = "sequences per step", .min = 1, .max = 1 << 24});
  visit("micro_batch", r.micro_batch, Field{.help = "sequences per pass", .min = 1, .max = 1 << 24});
  visit("seed", r.seed, Field{.help = "of weights, data order and capacities"});
  visit("loss_rows", r.loss_rows,
        Field{.help = "positions whose logits are held at once; 0 for all", .min = 0, .max = 1 << 24});
  visit("validate_every", r.validate_every, Field{.help = "steps; 0 only at the end", .min = 0, .max = 1e12});
  visit("validation_windows", r.validation_windows,
        Field{.help = "sequences of the validation split", .min = 1, .max = 1 << 24});
  visit("checkpoint_every", r.checkpoint_every, Field{.help = "steps; 0 only at the end", .min = 0, .max = 1e12});
  visit("keep", r.keep, Field{.help = "newest checkpoints kept, beside the best", .min = 1, .max = 1e6});
  visit("nonfinite", r.nonfinite, Field{.help = "on a NaN or infinite gradient: stop, skip or rollback"});
  visit("precision", r.precision,
        Field{.help = "of the model's arithmetic: bf16 (GPUs), float32, or auto: bf16 on GPUs, float32 on the CPU"});
}

template <class Visitor>
void fields(Visitor& visit, RefineRecipe& r) {
  visit("steps", r.steps, Field{.help = "steps of shared refinement", .min = 1, .max = 1e12});
  visit("batch", r.batch, Field{.help = "sequences per step", .min = 1, .max = 1 << 24});
  visit("rate", r.rate,
        Field{.help = "peak learning rate, falling to zero; 0: the last of pretraining", .min = 0, .max = 10});
  visit("warmup", r.warmup, Field{.help = "share of the steps in which the rate rises", .min = 0, .max = 1});
  visit("decay", r.decay,
        Field{.help = "weight decay on all two-dimensional tensors: all; or as in pretraining: matrices"});
  visit("moments", r.moments,
        Field{.help = "the optimizer's states at the beginning: fresh, or kept from the end of pretraining"});
  visit("schedule", r.schedule, Field{.help = "how the rate falls: cosine or linear"});
  visit("order", r.order,
        Field{.help = "of the data: own, or continued where pretraining ended, so that no sequence comes twice before "
                      "all others have come"});
  visit("label", r.label, Field{.help = "weight of the label loss of slices", .min = 0, .max = 1000});
  visit("kl", r.kl, Field{.help = "weight of the divergence from full capacity", .min = 0, .max = 1000});
  visit("tv", r.tv, Field{.help = "weight of the total variation from full capacity", .min = 0, .max = 1000});
  visit("full_share", r.full_share,
        Field{.help = "share of the micro-batches that train the full capacity alone", .min = 0, .max = 1});
  visit("sampling", r.sampling,
        Field{.help = "step: one capacity per step; shuffle: the tiers below full, shuffled across micro-batches"});
  visit("budgets", r.budgets, Field{.help = "for step; empty for 2, 4, 8, 16 and 24 of 32", .min = 0, .max = 1});
  visit("smallest_share", r.smallest_share,
        Field{.help = "share of the draws that go to the smallest capacity before the others are drawn",
              .min = 0,
              .max = 1});
  visit("teacher_budget", r.teacher_budget,
        Field{.help = "of the larger capacity, which learns from labels and teaches", .min = 1e-6, .max = 1});
}

template <class Visitor>
void fields(Visitor& visit, Recipe& r) {
  visit("model", r.model, Field{});
  visit("data", r.data, Field{});
  visit("optimizer", r.optimizer, Field{});
  visit("elastic", r.elastic, Field{});
  visit("run", r.run, Field{});
  visit("refine", r.refine, Field{});
}

// Reads YAML and then the settings "run.steps=100"; unknown keys are errors that suggest the nearest name.
Recipe parse_recipe(const std::string& yaml, const std::string& place, const std::vector<std::string>& settings);
// A recipe file, or a built-in recipe of recipe_names(). The settings of a name of settings_names(), if given, are
// applied before `settings`.
Recipe load_recipe(const std::string& name_or_path, const std::vector<std::string>& settings,
                   const std::string& named = {});
std::vector<std::string> recipe_names();
// Every field with its value, as YAML that parse_recipe reads back.
std::string recipe_yaml(const Recipe& recipe);

// A field in which two recipes differ, with both values as YAML.
struct RecipeDifference {
  std::string field;  // "run.steps"
  std::string before, after;
};
std::vector<RecipeDifference> recipe_differences(const Recipe& before, const Recipe& after);
// Whether a run may be resumed with another value of a field: its length, checkpoints and reports, the path of its
// data, and all of refinement.
bool may_change_in_a_run(const std::string& field);

// The config of the model to train, for a tokenizer of `tokens` entries.
ModelConfig recipe_config(const Recipe& recipe, Index tokens, Index eos);

}  // namespace essh
