// Grammars of calls that were compiled for earlier requests: an agent sends the same tools with every turn.
//
// Threads  any.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "src/text/constraint/token_constraint.h"

namespace mneme::server {

class KeptConstraints {
 public:
  // Null: not kept.
  std::shared_ptr<const TokenConstraint> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      if (kept->first != key) continue;
      kept_.splice(kept_.begin(), kept_, kept);
      return kept->second;
    }
    return nullptr;
  }

  void keep(std::string key, std::shared_ptr<const TokenConstraint> constraint) {
    constexpr std::size_t kMost = 32;  // agents at once; tools of one have 30 to 100 KB
    const std::lock_guard lock(mutex_);
    kept_.emplace_front(std::move(key), std::move(constraint));
    if (kept_.size() > kMost) kept_.pop_back();
  }

 private:
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const TokenConstraint>>> kept_;  // the one used last comes first
};

}  // namespace mneme::server
