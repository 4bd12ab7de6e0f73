// Which tokens may come next: the one thing that a sampler knows of grammars.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace mneme {

// A place in a grammar; immutable, so that copies of a sampler (forks, sessions) share it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit `id % 64` of word `id / 64` is set where that token may come next; others, and tokens beyond the grammar's
  // vocabulary, are zero. At least one bit is set.
  //
  //   mask  [ceil(vocabulary / 64)]  out
  virtual void allowed(std::span<std::uint64_t> mask) const = 0;
  // The place behind this token.  Requires  the token is allowed.
  virtual std::shared_ptr<const TokenConstraint> after(std::int32_t token) const = 0;
};

}  // namespace mneme
