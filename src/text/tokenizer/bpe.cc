#include "src/text/tokenizer/bpe.h"

namespace mneme {

std::string Bpe::token_bytes(TokenId id, bool show_special) const {
  if (!contains(id)) return {};
  const TokenType type = data_.types[id];
  if (!show_special && (type == TokenType::kControl || type == TokenType::kUnknown)) return {};
  return bytes_[id];
}

void Bpe::encode_sections(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out,
                          FunctionRef<void(std::string_view, bool, bool)> on_text) const {
  if (options.add_bos && data_.add_bos && data_.bos) out.push_back(*data_.bos);
  bool continues = options.continues;
  const TextSections sections{options.parse_special ? all_tokens_ : user_tokens_, *this};
  sections.for_each(
      text,
      [&](std::string_view section, bool after_control) {
        on_text(section, after_control, continues);
        continues = false;
      },
      [&](TokenId id) {
        continues = false;
        out.push_back(id);
      });
}

}  // namespace mneme
