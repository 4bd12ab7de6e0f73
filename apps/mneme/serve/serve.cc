// mneme serve: a model behind an OpenAI-compatible HTTP API.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/mneme/engine_options.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/model_source.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "apps/mneme/rank_options.h"
#include "apps/mneme/serve/serve_command.h"
#include "apps/mneme/text_input.h"
#include "src/base/error.h"
#include "src/engine/kv_method.h"
#include "src/engine/loop/disk_follower.h"
#include "src/server/server.h"

namespace mneme::cli {
namespace {

struct ServeCommand {
  server::ServerOptions server;
  ModelSource model;
  RankOptions ranks;
  std::optional<std::string> api_key;
  std::string slot_path, chat_template, answer_format, key_file, disk_path, kv_events, kv_events_replay,
      kv_events_topic;
  std::vector<std::string> presets;
  double disk_gib = 16, stream_ms = 20;
  std::int64_t responses_mib = 64;
  bool no_pin = false, quiet = false;
};

void say(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  fmt::print(stderr, "{}\n", line);
}

void expect_names_that_differ(const std::vector<server::Preset>& presets) {
  std::set<std::string> names;
  for (const server::Preset& preset : presets)
    if (!names.insert(preset.name).second) fail(ErrorKind::kOption, "--preset: \"{}\" is there twice", preset.name);
}

std::optional<server::KvEventOptions> kv_events_of(const ServeCommand& command) {
  if (command.kv_events.empty()) {
    if (!command.kv_events_replay.empty() || !command.kv_events_topic.empty())
      fail(ErrorKind::kOption, "--kv-events-replay, --kv-events-topic: only with --kv-events");
    return std::nullopt;
  }
  if (!command.server.prefix_cache) fail(ErrorKind::kOption, "--kv-events: only with --enable-prefix-caching");
  server::KvEventOptions events{.publish = server::kv_event_endpoint(command.kv_events, "--kv-events"),
                                .replay = {},
                                .topic = command.kv_events_topic};
  if (!command.kv_events_replay.empty())
    events.replay = server::kv_event_endpoint(command.kv_events_replay, "--kv-events-replay");
  return events;
}

// What to say of --kv-host-gib. Errors  kOption: it is of no use.
std::string host_note(const server::ServerOptions& o, bool ranks) {
  if (o.host_bytes == 0) return "";
  if (!o.prefix_cache) fail(ErrorKind::kOption, "--kv-host-gib: only with --enable-prefix-caching");
  if (ranks) fail(ErrorKind::kOption, "--kv-host-gib: only for a model in one process");
  const bool there = o.engine.device == Device::kCpu || o.engine.kv_store == KvResidency::kHost;
  return there ? "--kv-host-gib: the KV cache is in host memory already; --kv-offloading-size is the room for them"
               : "";
}

// --kv-disk; of several ranks each has a folder and a share.
std::optional<DiskOptions> disk_of(const ServeCommand& command) {
  if (command.disk_path.empty()) return std::nullopt;
  if (!command.server.prefix_cache) fail(ErrorKind::kOption, "--kv-disk: only with --enable-prefix-caching");
  return DiskOptions{.folder = command.disk_path, .bytes = std::llround(command.disk_gib * (1 << 30))};
}
void take_share(DiskOptions& disk, const Collective& world) {
  disk.folder /= fmt::format("rank{}of{}", world.rank(), world.size());
  disk.bytes /= world.size();
}

// A rank that follows has the disk of its own heads.
int follow_with_disk(const RankGroup& ranks, const ServeCommand& command) {
  const server::ServerOptions& o = command.server;
  return follow_leader(ranks, model_file(command.model, false), o.engine, [&o](const RunningModel& running) {
    return [pages = std::make_shared<DiskFollower>(running, o.disk)](RankCall call, ByteReader& in) {
      pages->repeat(call, in);
    };
  });
}

int serve(ServeCommand command) {
  server::ServerOptions& o = command.server;
  expect_model(command.model);
  expect_method(o.engine.kv);
  o.engine.pin_threads = !command.no_pin;
  if (!command.chat_template.empty()) o.chat_template = read_template(command.chat_template);
  o.answer_format = command.answer_format;
  if (std::filesystem::is_regular_file(o.answer_format)) o.answer_format = read_text(o.answer_format);
  o.stream_seconds = command.stream_ms / 1000;
  o.responses.bytes = static_cast<std::size_t>(command.responses_mib) << 20;
  if (!command.key_file.empty())
    o.listen.key_policies = server::parse_key_policies(read_text(command.key_file), command.key_file);
  if (command.api_key) o.listen.api_keys.push_back(*command.api_key);
  o.slot_path = command.slot_path;
  if (!o.slot_path.empty() && !std::filesystem::is_directory(o.slot_path))
    fail(ErrorKind::kOption, "--slot-save-path: {} is no folder", command.slot_path);
  o.disk = disk_of(command);
  for (const std::string& text : command.presets) o.presets.push_back(server::parse_preset(text, o.engine.kv));
  expect_names_that_differ(o.presets);
  o.kv_events = kv_events_of(command);
  if (!command.quiet) o.log = [](std::string_view line) { say(std::string(line)); };
  std::string note;
  const Recipe recipe = recipe_of(o.engine.kv, &note);
  const std::unique_ptr<RankGroup> ranks = join_ranks(command.ranks, o.engine);
  const std::string of_host = host_note(o, ranks != nullptr);
  if (ranks && o.disk) take_share(*o.disk, ranks->world());
  if (ranks && !ranks->leads()) return follow_with_disk(*ranks, command);
  say_note(note);
  say_note(of_host);
  say_note(weak_default(recipe));
  o.model = model_file(command.model, true);
  ProgressBar bar(ProgressBar::mode_for_stderr(true));
  const bool open_to_all = !server::asks_for_key(o.listen) && !server::is_loopback(o.listen.host);
  const std::string host = o.listen.host.find(':') == std::string::npos ? o.listen.host : "[" + o.listen.host + "]";
  server::Server server(std::move(o),
                        [&bar](std::string_view what, auto done, auto total) { bar.show(what, done, total); });
  bar.clear();
  const EngineOptions engine = server.engine_options();
  say(fmt::format("{}: context of {} tokens, up to {} answers at once, {} MiB of KV cache, {} threads",
                  server.served_name(), grouped(engine.context), engine.max_sequences, grouped(server.kv_bytes() >> 20),
                  engine.threads));
  if (const server::KvEventPublisher* events = server.kv_events(); events != nullptr)
    say(fmt::format("KV-cache events at {}{}{}", events->endpoint(),
                    events->replay_endpoint().empty() ? "" : ", replay at ", events->replay_endpoint()));
  server.stop_on_signals();
  std::optional<RankWatch> watch;
  if (ranks) watch.emplace(*ranks, [&server](const std::string& why) { server.fail("the ranks stopped: " + why); });
  if (open_to_all) say(fmt::format("warning: {} can be reached from other machines, and no --api-key is set", host));
  // Whoever starts the server waits for this line: it says which port was free.
  fmt::print("listening on http://{}:{}\n", host, server.port());
  std::fflush(stdout);
  server.run();
  if (!server.failure().empty()) {
    say("mneme: error: " + server.failure());
    return 1;
  }
  say("stopped");
  return 0;
}

void add_network_options(CLI::App& c, ServeCommand& command) {
  server::ServerOptions& o = command.server;
  const auto add = [](CLI::Option* option) { option->group("Network"); };
  add(c.add_option("--host", o.listen.host, "Address to listen on; 0.0.0.0: all")
          ->capture_default_str()
          ->check(not_empty()));
  add(c.add_option("--port", o.listen.port, "Port; 0: any free one")
          ->capture_default_str()
          ->check(whole_number(0, 65535)));
  add(c.add_option("--api-key", command.api_key, "Require the header Authorization: Bearer KEY, or x-api-key: KEY")
          ->type_name("KEY")
          ->check(not_empty()));
  add(c.add_option("--api-keys", command.key_file, "JSON file of API keys with priority and limits")
          ->type_name("FILE")
          ->check(not_empty()));
  add(c.add_option("--cors-origin", o.listen.cors_origins,
                   "Allow cross-origin requests from this origin (default: none)")
          ->type_name("ORIGIN")
          ->check(not_empty()));
  add(c.add_option("--allowed-host", o.listen.allowed_hosts, "Accept this Host header beside localhost")
          ->type_name("NAME")
          ->check(not_empty()));
  add(c.add_option("--max-connections", o.limits.max_connections, "Open connections; more are refused")
          ->capture_default_str()
          ->check(whole_number(1, 1 << 20)));
  add(c.add_option("--max-body-bytes", o.limits.max_body_bytes, "Largest request body")
          ->type_name("BYTES")
          ->capture_default_str()
          ->transform(bytes(1024, std::int64_t{1} << 40)));
  add(c.add_option("--request-timeout", o.timeouts.request_seconds, "Longest duration of a request, queueing included")
          ->type_name("SECONDS")
          ->capture_default_str()
          ->check(number(0.001, 1e8)));
  add(c.add_option("--drain-seconds", o.timeouts.drain_seconds,
                   "Requests are taken for so long after SIGTERM, while /health is 503")
          ->type_name("SECONDS")
          ->capture_default_str()
          ->check(number(0, 1e8)));
  add(c.add_option("--shutdown-timeout", o.timeouts.shutdown_seconds,
                   "Time for running answers after SIGTERM and --drain-seconds")
          ->type_name("SECONDS")
          ->capture_default_str()
          ->check(number(0, 1e8)));
}

void add_scheduling_options(CLI::App& c, ServeCommand& command) {
  server::ServerOptions& o = command.server;
  EngineOptions& e = o.engine;
  const auto add = [](CLI::Option* option) { option->group(kEngineGroup); };
  add(c.add_option("-c,--max-model-len,--ctx-size", e.context,
                   "Context length: prompt and answer (default: the model's)")
          ->type_name("TOKENS")
          ->transform(tokens(1, std::numeric_limits<std::int32_t>::max())));
  add(c.add_option("--parallel,--max-num-seqs", e.max_sequences, "Sequences of one step")
          ->capture_default_str()
          ->check(whole_number(1, 4096)));
  add(c.add_option("-b,--max-num-batched-tokens", e.max_batched_tokens,
                   "Tokens of one step; larger speeds up prefill, smaller keeps inter-token latency low beside it")
          ->type_name("TOKENS")
          ->capture_default_str()
          ->transform(tokens(1, 1 << 20)));
  add(c.add_option("--inter-token-ms", e.inter_token_ms,
                   "Shrink prefill chunks to keep this inter-token latency; 0: full chunks")
          ->type_name("MS")
          ->capture_default_str()
          ->check(number(0, 60000)));
  add(add_named(
          c, "--kv-admission", e.kv_admission, parse_kv_admission,
          "Room that an answer must find to begin: reserve, to its last token; forecast, as long as others became: "
          "more run, and the least urgent waits where that was too short")
          ->type_name("HOW")
          ->check(one_of({"reserve", "forecast"})));
  add(c.add_option("--max-queue", o.limits.max_queue, "Waiting requests; more get 429")
          ->capture_default_str()
          ->check(whole_number(0, 1 << 20)));
  add(c.add_option(
           "--stream-interval-ms", command.stream_ms,
           "Shortest interval between chunks of a stream; tokens in between are sent together; 0: one token a chunk")
          ->type_name("MS")
          ->capture_default_str()
          ->check(number(0, 1000)));
  add(c.add_option("--default-max-tokens", o.default_max_tokens, "max_tokens of chat requests that set none")
          ->type_name("TOKENS")
          ->capture_default_str()
          ->transform(tokens(1, std::numeric_limits<std::int32_t>::max())));
}

void add_kv_cache_options(CLI::App& c, ServeCommand& command) {
  server::ServerOptions& o = command.server;
  EngineOptions& e = o.engine;
  const auto add = [](CLI::Option* option) { option->group(kEngineGroup); };
  add_kv_room_options(c, e);
  add_device_option(c, e);
  add_machine_options(c, e, command.no_pin);
  add_deterministic_option(c, e);
  add(c.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_cache,
                 "Prefix cache: reuse KV pages of equal prompt prefixes (default: on)"));
  add(add_gib(
      c, "--kv-host-gib", o.host_bytes,
      "Page-locked host memory as a second tier of the device's KV cache: prompts and preempted answers come back "
      "from it (default: none)"));
  add(c.add_option("--kv-disk", command.disk_path,
                   "Folder for the KV cache of prompts that may come again: more of them than memory holds, also "
                   "after a restart")
          ->type_name("FOLDER")
          ->check(not_empty()));
  add(c.add_option("--kv-disk-gib", command.disk_gib, "Size of the KV disk cache; evicts the least recently used")
          ->type_name("SIZE")
          ->capture_default_str()
          ->transform(gib(0.0001, 1e6)));
  add(c.add_option("--slot-save-path", command.slot_path, "Folder for saved slots")
          ->type_name("FOLDER")
          ->check(not_empty()));
}

// What routers in front of several replicas read.
void add_replica_options(CLI::App& c, ServeCommand& command) {
  const auto add = [](CLI::Option* option) { option->group("Replicas behind a router"); };
  add(c.add_option("--preset", command.presets,
                   "NAME=JSON: serve a recipe as MODEL:NAME, as in fast={\"method\":\"freekv\",\"budget\":2048}")
          ->type_name("PRESET")
          ->take_all()
          ->allow_extra_args(false)
          ->check(not_empty()));
  add(c.add_option("--kv-events", command.kv_events,
                   "Publish prefix-cache events as vLLM's routers read them: a port of 127.0.0.1, or tcp://HOST:PORT")
          ->type_name("PORT|ADDRESS")
          ->check(not_empty()));
  add(c.add_option("--kv-events-replay", command.kv_events_replay, "Where subscribers ask for missed events")
          ->type_name("PORT|ADDRESS")
          ->check(not_empty()));
  add(c.add_option("--kv-events-topic", command.kv_events_topic, "Topic of these events (default: empty)")
          ->type_name("TEXT"));
  add(c.add_option("--metrics-prefix", command.server.metrics_prefix,
                   "Prefix of metrics' names: vllm for what scrapes vLLM")
          ->type_name("NAME")
          ->capture_default_str()
          ->check(identifier()));
}

void add_answer_options(CLI::App& c, ServeCommand& command) {
  c.add_option(
       "--answer-format", command.answer_format,
       "How the model writes thoughts and calls of tools: the name of a format, a file with one as JSON, or none "
       "(answers are plain text). Default: found (mneme inspect shows it)")
      ->type_name("NAME|FILE|none")
      ->check(not_empty())
      ->group("Model");
  c.add_option("--reasoning-field", command.server.thought_field, "Field of answers that holds the model's thought")
      ->capture_default_str()
      ->check(CLI::IsMember({"reasoning_content", "reasoning"}))
      ->group("Model");
  c.add_option("--responses-store-mib", command.responses_mib,
               "Memory for responses that previous_response_id names, each for an hour after its last use; 0: none")
      ->type_name("MIB")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 20))
      ->group("Model");
}

}  // namespace

void add_serve(CLI::App& app, int& code) {
  auto command = std::make_shared<ServeCommand>();
  CLI::App* c = app.add_subcommand("serve", "Serve OpenAI's API over HTTP");
  c->add_option("-m,--model", command->model.path, "GGUF file or Hugging Face folder")
      ->type_name("PATH")
      ->group("Model");
  add_hf_option(*c, command->model)->group("Model");
  c->add_option("-a,--served-model-name,--alias", command->server.served_name,
                "Model name in requests (default: the file's name)")
      ->type_name("NAME")
      ->check(not_empty())
      ->group("Model");
  c->add_option(
       "--chat-template", command->chat_template,
       "Use this Jinja chat template instead of the model's: a file, the template itself, or the name of one of the "
       "model's templates (mneme inspect lists them)")
      ->type_name("FILE|TEXT|NAME")
      ->check(not_empty())
      ->group("Model");
  add_answer_options(*c, *command);
  add_network_options(*c, *command);
  add_scheduling_options(*c, *command);
  add_kv_cache_options(*c, *command);
  add_replica_options(*c, *command);
  add_rank_options(*c, command->ranks);
  add_kv_options(*c, command->server.engine.kv);
  c->add_option("--audit", command->server.engine.audit_every,
                "Compute true attention too at every n-th step, for statistics; 0: never")
      ->type_name("STEPS")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 30))
      ->group("KV cache");
  c->add_flag("--quiet", command->quiet, "Do not log requests")->group("Output");
  c->footer(
      "Answers are drawn at temperature 1 unless a request sets another, as OpenAI's are; mneme run is greedy.\n"
      "Listens on this machine only unless --host says otherwise. SIGTERM and Ctrl-C let running answers end first.\n"
      "Example: mneme serve -m models/needle-27m-q8_0.gguf --port 8000");
  c->callback([command, &code] { code = serve(*command); });
}

}  // namespace mneme::cli
