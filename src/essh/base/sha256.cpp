#include "essh/base/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/file.h"

namespace essh {

struct Sha256::Context {
  EVP_MD_CTX* handle = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(handle); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (!context_->handle || EVP_DigestInit_ex(context_->handle, EVP_sha256(), nullptr) != 1) {
    fail(ErrorKind::Internal, "SHA-256 is not available from OpenSSL");
  }
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_->handle, bytes.data(), bytes.size());
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_->handle, digest, &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path) {
  InputFile file(path);
  Sha256 hash;
  std::vector<std::byte> piece(std::min<std::uint64_t>(file.size(), 1u << 20));
  for (std::uint64_t offset = 0; offset < file.size(); offset += piece.size()) {
    const auto size = std::min<std::uint64_t>(piece.size(), file.size() - offset);
    file.read(offset, std::span(piece).first(size));
    hash.update(std::span(piece).first(size));
  }
  return hash.hex();
}

std::string sha256_of_text(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

}  // namespace essh
