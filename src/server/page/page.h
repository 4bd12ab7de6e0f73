// The page at "/": a conversation over a document, and what retrieval read of it. One file, no other requests.
#pragma once

#include <string_view>

namespace mneme::server {

// The page at `/`. "{{nonce}}" in it is replaced by the nonce of its Content-Security-Policy.
std::string_view page_html();

}  // namespace mneme::server
