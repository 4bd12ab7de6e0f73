#include "apps/hub/curl/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "src/base/check.h"

namespace mneme::hub {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(DigestKind kind, std::int64_t size) : state_(std::make_unique<State>()) {
  const EVP_MD* const type = kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1();
  MNEME_CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, type, nullptr) == 1, "no digest");
  if (kind == DigestKind::kSha256) return;
  const std::string head = fmt::format("blob {}", size);
  update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with the zero
}
Digest::~Digest() = default;

void Digest::update(std::span<const std::byte> bytes) {
  MNEME_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "{} bytes", bytes.size());
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned length = 0;
  MNEME_CHECK(EVP_DigestFinal_ex(state_->context, sum.data(), &length) == 1, "the digest has ended");
  std::string out;
  for (unsigned i = 0; i < length; ++i) out += fmt::format("{:02x}", sum[i]);
  return out;
}

}  // namespace mneme::hub
