#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "essh/config/field.h"
#include "essh/store/stored_model.h"

namespace essh {

// Model, data and build of a result, under "provenance" in every result document. Two results with equal provenance and
// equal options differ only by the machine.
struct ResultProvenance {
  std::string model_hash = {};        // model_hash() of the folder; empty: several models, or weights without a folder
  std::string stage = {};             // "initial", "pretrained", "refined" or "export"; empty: unknown
  std::string data_fingerprint = {};  // of the text or task; empty: tokens drawn at random
  std::uint64_t seed = 0;             // of the measurement's random numbers
  std::string build = {};             // this_build()
};

template <class Visitor>
void fields(Visitor& visit, ResultProvenance& p) {
  visit("model_hash", p.model_hash, Field{.help = "SHA-256 over the model's config and weights"});
  visit("stage", p.stage, Field{.help = "how the model came about"});
  visit("data_fingerprint", p.data_fingerprint, Field{.help = "of the text or task"});
  visit("seed", p.seed, Field{.help = "of the measurement's random numbers"});
  visit("build", p.build, Field{.help = "version, commit, compiler and kind of build"});
}

// "essh 0.1.0 (dbf24a630167), GNU 12.2.0, Release, CUDA 13.0".
std::string this_build();

// Provenance of a result about one model. `folder` may be empty or without essh.json.
ResultProvenance provenance_of(const StoredModel& model, const std::filesystem::path& folder,
                               std::string data_fingerprint, std::uint64_t seed);

// The family of a model: of an export, its parent; of any other model, itself.
struct Family {
  std::string hash;
  Index full_parameters = 0;  // 0: unknown to the essh.json of an export
};
Family family_of(const StoredModel& model, const std::filesystem::path& folder);

}  // namespace essh
