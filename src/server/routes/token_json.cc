#include "src/server/routes/token_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "src/server/api/api_error.h"
#include "src/server/api/completion_json.h"
#include "src/text/unicode/utf8.h"

namespace mneme::server {
namespace {

std::string piece_json(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = tokenizer.token_bytes(id, true);
  if (find_invalid_utf8(bytes) == kValidUtf8) return json_string(bytes);
  std::string list = "[";
  for (const unsigned char c : bytes) fmt::format_to(std::back_inserter(list), "{},", c);
  list.back() = ']';
  return list;
}

}  // namespace

std::string tokenize_json(const Tokenizer& tokenizer, std::span<const TokenId> tokens, const TokenizeReply& reply) {
  std::string out = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[", tokens.size(), reply.context);
  // Room that is not written to takes no memory; to double what there is does.
  out.reserve(std::min(reply.max_bytes, tokens.size() * (reply.with_pieces ? 40 : 8)) + 64);
  const auto append = std::back_inserter(out);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    if (reply.with_pieces)
      fmt::format_to(append, "{{\"id\":{},\"piece\":{}}}", tokens[i], piece_json(tokenizer, tokens[i]));
    else
      fmt::format_to(append, "{}", tokens[i]);
    if (out.size() > reply.max_bytes)
      throw ApiError(413, fmt::format("the answer for {} tokens is longer than {} bytes: send the text in parts, or "
                                      "leave with_pieces out",
                                      tokens.size(), reply.max_bytes));
  }
  return out += "]}";
}

}  // namespace mneme::server
