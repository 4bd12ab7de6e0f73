// Log-probabilities and logits of a session, by a request beside it.
#include <utility>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/session/session_impl.h"
#include "src/engine/session/side_request.h"

namespace mneme {

std::shared_ptr<const Plan> Session::Impl::plan_beside() const {
  const std::shared_ptr<const Plan>& plan = id.valid() ? last_method : method;
  return plan != nullptr && plan->binds_sequence() ? plan : nullptr;
}

Scores Session::score(std::string_view text, const ScoreOptions& options) const {
  const Impl& s = *impl_;
  s.expect_idle();
  const std::int64_t vocab = s.model->text->info.vocabulary;
  if (options.top < 0 || options.top > vocab)
    fail(ErrorKind::kOption, "top: expected 0 to {}, found {}", vocab, options.top);
  const Tokenizer& tokenizer = *s.model->text->tokenizer;
  const bool first = !s.id.valid();
  const std::vector<TokenId> tokens =
      tokenizer.encode(text, {.parse_special = options.special == SpecialTokens::kParsed,
                              .add_bos = first && tokenizer.adds_bos(),
                              .continues = !first});
  Scores scores;
  RequestInput input;
  input.max_tokens = 0;
  input.score_prompt = options.top;
  input.method = s.plan_beside();
  SideRequest request(*s.model->loop);
  s.model->loop->exclusive([&](Engine& engine) {
    std::int32_t before = 0;  // tokens of the session that the request shares
    if (!first) {
      const auto all = engine.tokens(s.id);
      before = size32(all) - 1;
      input.prompt.push_back(all.back());  // its logits score the first token of the text
    }
    input.prompt.insert(input.prompt.end(), tokens.begin(), tokens.end());
    if (input.prompt.size() < 2) fail(ErrorKind::kRequest, "the text has no token to score");
    const auto end = before + size32(input.prompt);
    if (options.logits)
      input.on_logits = [&scores, end](std::int32_t position, std::span<const float> row) {
        if (position < end) scores.logits.insert(scores.logits.end(), row.begin(), row.end());
      };
    request.begin(engine, first ? Origin{} : Origin::prefix(s.id, before), std::move(input));
  });
  request.run([] { return false; });
  std::vector<PromptScore>& rows = request.scores();
  for (std::size_t i = 0; i < rows.size(); ++i)
    scores.tokens.push_back(
        {.token = tokens[tokens.size() - rows.size() + i], .logprob = rows[i].logprob, .top = std::move(rows[i].top)});
  return scores;
}

std::vector<float> Session::logits() const {
  const Impl& s = *impl_;
  s.expect_idle();
  if (!s.id.valid()) fail(ErrorKind::kRequest, "there are no logits yet: the session has no turn");
  std::vector<float> logits;
  SideRequest request(*s.model->loop);
  s.model->loop->exclusive([&](Engine& engine) {
    const auto all = engine.tokens(s.id);
    RequestInput input;
    input.prompt = {all.back()};
    input.max_tokens = 1;
    input.method = s.plan_beside();
    input.on_logits = [&logits](std::int32_t, std::span<const float> row) { logits.assign(row.begin(), row.end()); };
    request.begin(engine, Origin::prefix(s.id, size32(all) - 1), std::move(input));
  });
  request.run([] { return false; });
  return logits;
}

}  // namespace mneme
