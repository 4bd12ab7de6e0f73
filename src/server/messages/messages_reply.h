// An answer as a message of Anthropic's API: content blocks, whole or streamed.
//
// The stream: message_start, ping; for each block content_block_start, content_block_delta's, content_block_stop;
// message_delta, message_stop. A block is open at a time. While nothing happens: ping.
#pragma once

#include <memory>
#include <string>

#include "src/server/messages/messages_request.h"
#include "src/server/reply/answer_reply.h"

namespace mneme::server {

class MessagesReply final : public AnswerReply {
 public:
  MessagesReply(Setting setting, MessagesRequest request, std::shared_ptr<ResponseWriter> writer);

 private:
  std::string first_events() override;
  std::string waiting_events() override;
  std::string change_events(const AnswerItems::Change& change) override;
  std::string last_events() override;
  OrderedJson object() override;
  std::string error_body(const ApiError& error) const override;
  std::string error_events(const ApiError& error) override;

  OrderedJson head() const;
  OrderedJson usage_json() const;
  OrderedJson block_json(const AnswerItem& item) const;
  std::string signature_of(const AnswerItem& thought) const;
  std::string stop_reason() const;

  std::string id_, model_;
  bool shows_thought_;
};

}  // namespace mneme::server
