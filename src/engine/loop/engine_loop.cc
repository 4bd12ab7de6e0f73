#include "src/engine/loop/engine_loop.h"
#include "src/base/seconds.h"

#include <algorithm>
#include <utility>

namespace mneme {

EngineLoop::EngineLoop(std::function<RunningModel()> start, Options options, LoopMetrics& metrics, Deliver deliver)
    : options_(std::move(options)), metrics_(metrics), deliver_(std::move(deliver)) {
  thread_ = std::thread([this, start = std::move(start)]() mutable { run(std::move(start)); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_ || start_error_; });
  if (!start_error_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(start_error_);
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EngineLoop::push(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

std::optional<GenerationId> EngineLoop::submit(GenerationInput input, std::shared_ptr<GenerationSink> sink) {
  const std::int64_t n = input.n;
  if (in_flight_.fetch_add(n) + n > options_.max_in_flight) {
    in_flight_.fetch_sub(n);
    return std::nullopt;
  }
  const GenerationId id(next_id_++);
  const auto arrived = GenerationTable::Clock::now();
  // A std::function has to be copyable; the input is not worth a copy.
  auto order = std::make_shared<GenerationInput>(std::move(input));
  push([id, order, sink = std::move(sink), arrived](GenerationTable& table, SequenceKeeper&) {
    table.submit(id, std::move(*order), sink, arrived);
  });
  return id;
}

void EngineLoop::cancel(GenerationId id) {
  push([id](GenerationTable& table, SequenceKeeper&) { table.cancel(id); });
}

void EngineLoop::fail_all(Failure failure) {
  push([failure = std::move(failure)](GenerationTable& table, SequenceKeeper&) { table.fail_all(failure); });
}

void EngineLoop::call(std::function<std::function<void()>(SequenceKeeper&)> task) {
  push([task = std::move(task)](GenerationTable& table, SequenceKeeper& keeper) {
    const std::function<void()> then = task(keeper);
    table.report_gauges();
    then();
  });
}

// False: the loop is to end.
bool EngineLoop::take_tasks(std::vector<Task>& tasks, bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
  tasks.clear();
  std::swap(tasks, tasks_);
  return !ends_;
}

namespace {

bool is_piece(const GenerationEvent& e) {
  return !e.accepted && !e.progress && !e.prompt && !e.piece.end && !e.failure;
}

}  // namespace

// Keeps news until they are handed out; pieces of an answer become one.
void EngineLoop::hold(std::vector<Delivery> news) {
  for (Delivery& d : news) {
    const auto [it, first] = last_held_.try_emplace(d.sink.get(), held_.size());
    if (!first) {
      GenerationEvent& before = held_[it->second].event;
      if (is_piece(before) && !before.piece.reads && is_piece(d.event) && before.choice == d.event.choice) {
        before.piece.append(std::move(d.event.piece));
        continue;
      }
      it->second = held_.size();
    }
    held_.push_back(std::move(d));
  }
}

// To wake the thread that sends takes a core from those that compute, for every token: where tokens come faster than
// anybody reads, several go out together.
void EngineLoop::hand_out(GenerationTable& table) {
  hold(table.take_deliveries());
  if (held_.empty()) return;
  const auto now = GenerationTable::Clock::now();
  const bool waits = !table.idle() && seconds_between(handed_out_, now) < options_.stream_seconds &&
                     std::all_of(held_.begin(), held_.end(), [](const Delivery& d) { return is_piece(d.event); });
  if (waits) return;
  handed_out_ = now;
  last_held_.clear();
  deliver_(std::exchange(held_, {}));
}

void EngineLoop::run(std::function<RunningModel()> start) {
  std::optional<LanguageModel> model;
  std::optional<SequenceKeeper> keeper;
  try {
    model = LanguageModelAccess::make(start());
    keeper.emplace(LanguageModelAccess::shared(*model), options_.keeper);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    start_error_ = std::current_exception();
    changed_.notify_all();
    return;
  }
  SharedModel& shared = LanguageModelAccess::shared(*model);
  {
    const std::lock_guard lock(mutex_);
    model_ = std::move(model);
  }
  serve(shared, *keeper);
}

void EngineLoop::serve(SharedModel& model, SequenceKeeper& keeper) {
  GenerationTable table(model, keeper, metrics_);
  bool idle = true, reported_broken = false;
  std::optional<Failure> broken;
  std::vector<Task> tasks;
  const auto work = [&](Engine&) {
    for (const Task& task : tasks) task(table, keeper);
    table.expire(GenerationTable::Clock::now());
    table.idle() ? keeper.work(true) : table.step();
    table.report_gauges();
    in_flight_.fetch_sub(table.take_ended());
    hand_out(table);
    idle = table.idle() && !keeper.has_work();
    broken = table.broken();
  };
  model.loop->exclusive([&](Engine&) { table.report_gauges(); });
  {
    const std::lock_guard lock(mutex_);
    ready_ = true;
  }
  changed_.notify_all();
  while (take_tasks(tasks, idle)) {
    model.loop->exclusive(work);
    if (broken && !std::exchange(reported_broken, true)) options_.on_broken(*broken);
  }
}

}  // namespace mneme
