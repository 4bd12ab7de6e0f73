// Interface of a grammar for the sampler: which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace mneme {

// A state of a grammar; immutable, so that copies of a sampler (forks, sessions) share it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets bit `id % 64` of word `id / 64` where that token may come next; other bits, and those beyond the grammar's
  // vocabulary, are zero. At least one bit is set.
  //
  //   mask  [ceil(vocabulary / 64)]  out
  virtual void allowed(std::span<std::uint64_t> mask) const = 0;
  // All tokens may come next: allowed() need not be asked. A state whose mask has only ones may say no.
  virtual bool everything() const { return false; }
  // The state after this token.  Requires  the token is allowed.
  virtual std::shared_ptr<const TokenConstraint> after(std::int32_t token) const = 0;
};

}  // namespace mneme
