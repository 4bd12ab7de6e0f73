// Slots: what is in them, and their files.
#include <utility>

#include "src/base/error.h"
#include "src/server/api/api.h"
#include "src/server/api/api_error.h"
#include "src/server/api/request_fields.h"

namespace mneme::server {
namespace {

constexpr std::string_view kSlotFields[] = {"filename"};

}  // namespace

void Api::slots(const HttpRequest&, Writer writer) {
  loop_.call([this, writer](SequenceKeeper& keeper) -> std::function<void()> {
    OrderedJson list = OrderedJson::array();
    for (std::size_t i = 0; i < keeper.slots().size(); ++i)
      list.push_back({{"id", i}, {"n_tokens", keeper.slots()[i].n_tokens}});
    return [this, writer, out = json_text(list)] {
      executors_.io([writer, out]() mutable { writer->respond({.body = std::move(out)}); });
    };
  });
}

void Api::slot_action(const HttpRequest& request, Writer writer) {
  const std::string id = request.path.substr(std::string_view("/slots/").size());
  const bool digits = !id.empty() && id.size() < 6 && id.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) throw ApiError(404, "expected /slots/ and the number of a slot");
  const std::string action = request.parameter("action");
  if (action != "save" && action != "restore" && action != "erase")
    throw ApiError(400, "action: expected save, restore or erase", "action");
  const std::int32_t slot = std::stoi(id);
  if (action == "erase") {
    return executors_.files([this, slot, writer] {
      answer_slot(
          writer, [&](OrderedJson& json) { json["n_erased"] = slot_files_.erase(slot); }, slot);
    });
  }
  with_body(request, std::move(writer), [this, action, slot](const Body& body, Writer w) -> std::function<void()> {
    expect_fields(body.json, kSlotFields);
    return [this, action, slot, name = body.json.at("filename").string(), w] {
      executors_.files([this, action, slot, name, w] {
        const auto act = [&](OrderedJson& json) {
          json["filename"] = name;
          (action == "save" ? json["n_saved"] = slot_files_.save(slot, name)
                            : json["n_restored"] = slot_files_.restore(slot, name));
        };
        answer_slot(w, act, slot);
      });
    };
  });
}

// Answers with what `act` adds, or with its error. On the thread for files.
void Api::answer_slot(const Writer& writer, FunctionRef<void(OrderedJson&)> act, std::int32_t slot) {
  HttpResponse response;
  try {
    OrderedJson json{{"id_slot", slot}};
    act(json);
    response.body = json_text(json);
  } catch (const Error& e) {
    response = response_of(api_error_of(e));
  }
  executors_.io([writer, response = std::move(response)]() mutable { writer->respond(std::move(response)); });
}

}  // namespace mneme::server
