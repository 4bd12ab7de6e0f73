// Requests that no route answers: what browsers ask first, and paths that nearly are one.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/most_like.h"
#include "src/server/api/api.h"
#include "src/server/api/api_error.h"

namespace mneme::server {
namespace {

bool is_printable(char c) {
  return c >= 0x20 && c <= 0x7e;
}

}  // namespace

// A browser asks before it sends a request of a page of another origin. Where that may call, the connection adds the
// origin's name.
void Api::answer_options(const HttpRequest& request, const Writer& writer) const {
  HttpResponse response{.status = 204,
                        .content_type = "text/plain",
                        .headers = {{"Allow", "GET, HEAD, POST, DELETE, OPTIONS"}},
                        .body = {}};
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && !request.header("access-control-request-method").empty()) {
    if (allowed_origin(options_.listen, origin).empty()) {
      throw ApiError(403, fmt::format("pages of {} may not call this server: start it with --cors-origin {}",
                                      origin.substr(0, 200), origin.substr(0, 200)));
    }
    // Clients add headers of their own (x-stainless-os): any is allowed.
    const std::string_view asked = request.header("access-control-request-headers");
    const bool usable = !asked.empty() && asked.size() <= 4096 && std::all_of(asked.begin(), asked.end(), is_printable);
    response.headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE");
    response.headers.emplace_back("Access-Control-Allow-Headers",
                                  usable ? std::string(asked) : "Authorization, Content-Type");
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  writer->respond(std::move(response));
}

// The path of a route that a client with another base URL means: /chat/completions, /v1/v1/models, /v1/health.
std::string Api::meant_path(std::string_view path) {
  constexpr std::string_view kVersion = "/v1";
  std::string_view bare = path;
  while (bare.size() > 1 && bare.ends_with('/')) bare.remove_suffix(1);
  std::string_view rest = bare;
  while (rest.starts_with("/v1/")) rest.remove_prefix(kVersion.size());
  const std::string versioned = std::string(kVersion) + std::string(rest);
  std::vector<std::string_view> paths;
  for (const Route& route : routes())
    if (!route.path.ends_with('*') && route.path.size() > 1) paths.push_back(route.path);
  for (const std::string_view tried : {std::string_view(versioned), rest})
    if (std::find(paths.begin(), paths.end(), tried) != paths.end()) return std::string(tried);
  if (path.size() > 60) return {};
  const std::string_view like = most_like(versioned, paths);
  return std::string(like.empty() ? most_like(bare, paths) : like);
}

}  // namespace mneme::server
