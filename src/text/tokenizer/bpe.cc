#include "src/text/tokenizer/bpe.h"

namespace mneme {

std::string Bpe::token_bytes(TokenId id, bool show_special) const {
  if (!contains(id)) return {};
  const TokenType type = data_.types[id];
  if (!show_special && (type == TokenType::kControl || type == TokenType::kUnknown)) return {};
  return bytes_[id];
}

void Bpe::add_added(std::string_view text, TokenId id) {
  const bool normalized = (flags_[id] & kAddedNormalized) != 0;
  if (data_.types[id] == TokenType::kUserDefined) (normalized ? user_normalized_ : user_tokens_).add(text, id);
  (normalized ? all_normalized_ : all_tokens_).add(text, id);
}

void Bpe::encode_sections(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out,
                          FunctionRef<std::string_view(const Section&)> normalise,
                          FunctionRef<void(const Section&)> on_text) const {
  if (options.add_bos && data_.add_bos && data_.bos) out.push_back(*data_.bos);
  const bool special = options.parse_special;
  const TextSections raw{special ? all_tokens_ : user_tokens_, *this};
  const TextSections normalised{special ? all_normalized_ : user_normalized_, *this};
  const auto on_token = [&](TokenId id) { out.push_back(id); };
  raw.for_each(
      text,
      [&](const TextSection& outer) {
        const bool starts = outer.at_start && !options.after_tokens;
        const std::string_view inside =
            normalise({{outer.text, starts, outer.after_control}, outer.at_start && options.continues});
        normalised.for_each(
            inside,
            [&](const TextSection& inner) {
              on_text(
                  {{inner.text, starts && inner.at_start, inner.at_start ? outer.after_control : inner.after_control},
                   outer.at_start && inner.at_start && options.continues});
            },
            on_token);
      },
      on_token);
}

}  // namespace mneme
