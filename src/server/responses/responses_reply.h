// An answer as a response of OpenAI's API: items, whole or streamed.
//
// The stream: response.created, response.in_progress; for each item response.output_item.added, the events of its part
// and its text, response.output_item.done; response.completed, response.incomplete or response.failed. Events are
// numbered from 0. While nothing happens: response.in_progress.
#pragma once

#include <memory>
#include <string>

#include "src/server/reply/answer_reply.h"
#include "src/server/responses/responses_request.h"

namespace mneme::server {

class ResponsesReply final : public AnswerReply {
 public:
  // store: where the response is kept, for `owner`. Requires  it outlives the object.
  ResponsesReply(Setting setting, ResponsesRequest request, std::shared_ptr<ResponseWriter> writer,
                 ResponseStore& store, std::string owner);

 private:
  std::string first_events() override;
  std::string waiting_events() override;
  std::string change_events(const AnswerItems::Change& change) override;
  std::string last_events() override;
  OrderedJson object() override;
  void on_end() override;
  std::string error_events(const ApiError& error) override;

  std::string event(std::string_view type, OrderedJson data);
  // An event of the item: with its id, its index and `more`.
  std::string item_event(std::string_view type, std::size_t item, OrderedJson more);
  std::string opened(std::size_t item);
  std::string grew(const AnswerItems::Change& change);
  std::string closed(std::size_t item);

  OrderedJson response_json(std::string_view status) const;
  std::string status() const;
  OrderedJson usage_json() const;
  std::string item_id(std::size_t item) const;
  // With its text, or as it begins.
  enum class Form { kBegun, kDone };
  OrderedJson item_json(std::size_t item, Form form) const;
  OrderedJson call_json(std::size_t item, Form form, const OrderedJson& status) const;
  OrderedJson part_json(std::size_t item, Form form) const;
  OrderedJson logprobs_of(std::span<const TokenScore> tokens) const;

  ResponseTools tools_;
  OrderedJson repeated_, input_;
  std::string previous_, id_, owner_;
  bool stored_, summarises_, seals_, logprobs_;
  ResponseStore& store_;
  std::int64_t events_ = 0, completed_at_ = 0;  // completed_at_: seconds since 1970
};

}  // namespace mneme::server
