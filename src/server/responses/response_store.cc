#include "src/server/responses/response_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mneme::server {
namespace {

// Ids are unique among owners as well; the owner is checked where one is found.
std::size_t bytes_of(const StoredResponse& r) {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return sizeof(r) + r.owner.size() + r.input.dump(-1, ' ', false, kReplace).size() +
         r.response.dump(-1, ' ', false, kReplace).size();
}

}  // namespace

ResponseStore::ResponseStore(std::size_t bytes, double seconds, std::function<Clock::time_point()> now)
    : bytes_(bytes), seconds_(seconds), now_(std::move(now)) {}

void ResponseStore::drop(Entries::iterator entry) {
  used_ -= entry->bytes;
  by_id_.erase(entry->response->id);
  entries_.erase(entry);
}

void ResponseStore::expire() {
  const Clock::time_point now = now_();
  while (!entries_.empty() && now - entries_.back().used > seconds_) drop(std::prev(entries_.end()));
}

void ResponseStore::put(StoredResponse response) {
  const std::size_t bytes = bytes_of(response);
  const std::lock_guard lock(mutex_);
  expire();
  if (bytes > bytes_) return;
  while (used_ + bytes > bytes_) drop(std::prev(entries_.end()));
  entries_.push_front(
      {.response = std::make_shared<const StoredResponse>(std::move(response)), .bytes = bytes, .used = now_()});
  by_id_[entries_.front().response->id] = entries_.begin();
  used_ += bytes;
}

ResponseStore::Stored ResponseStore::use(const std::string& owner, const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->owner != owner) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  entries_.front().used = now_();
  return entries_.front().response;
}

ResponseStore::Stored ResponseStore::find(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  expire();
  return use(owner, id);
}

std::vector<ResponseStore::Stored> ResponseStore::chain(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  expire();
  std::vector<Stored> chain;
  // The first one is used last: a response goes before those that it went on from.
  for (std::string next = id; !next.empty();) {
    Stored one = use(owner, next);
    if (one == nullptr) return {};
    next = one->previous;
    chain.push_back(std::move(one));
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

nlohmann::ordered_json ResponseStore::find_item(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  expire();
  for (const Entry& entry : entries_) {
    if (entry.response->owner != owner) continue;
    for (const auto* items : {&entry.response->input, &entry.response->response["output"]})
      for (const auto& item : *items)
        if (item.is_object() && item.contains("id") && item["id"] == id && item.value("type", "") != "item_reference")
          return item;
  }
  return nullptr;
}

bool ResponseStore::erase(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  expire();
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->response->owner != owner) return false;
  drop(found->second);
  return true;
}

std::size_t ResponseStore::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace mneme::server
