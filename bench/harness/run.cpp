// Rows in nccl-tests' order: types, then operators, then roots, each over all sizes.
#include "bench/harness/run.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

#include "bench/harness/json_file.hpp"
#include "bench/harness/machine.hpp"
#include "bench/harness/progress_bar.hpp"
#include "bench/harness/report.hpp"

namespace rondo::bench {
namespace {

std::string bytes_range(Collective collective, const Sweep& sweep) {
  if (collective == Collective::kBarrier) return "none";
  std::string text = format_size(sweep.min) + " to " + format_size(sweep.max);
  if (sweep.min == sweep.max) return text;
  return text + (sweep.factor > 1 ? " by factor " + std::to_string(sweep.factor)
                                  : " by steps of " + format_size(sweep.step));
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

/// The buffers for all shapes; owns them. The buffer of expected values is absent if it does not
/// fit into memory.
class RunMemory {
 public:
  RunMemory(Backend& backend, size_t bytes, size_t expected_bytes)
      : backend_(backend),
        buffers_{.in = backend.allocate(bytes),
                 .out = backend.allocate(bytes),
                 .expected = expected_bytes > 0 ? backend.allocate(expected_bytes) : nullptr} {
    ok_ = buffers_.in != nullptr && buffers_.out != nullptr &&
          zero_if_available(buffers_.in, bytes, bytes, backend.size()) &&
          zero_if_available(buffers_.out, bytes, 0, backend.size());
  }
  ~RunMemory() {
    backend_.release(buffers_.in);
    backend_.release(buffers_.out);
    if (buffers_.expected != nullptr) backend_.release(buffers_.expected);
  }
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  bool ok() const { return ok_; }
  const Buffers& buffers() const { return buffers_; }

 private:
  Backend& backend_;
  Buffers buffers_;
  bool ok_ = false;
};

/// `begins` is called before each row, `ends` after it.
struct RowCalls {
  std::function<void(const CallShape&)> begins;
  std::function<void(const Row&)> ends;
};

Status measure_rows(const PerfOptions& options, Backend& backend,
                    const std::vector<CallShape>& shapes, const RowCalls& calls,
                    std::vector<Row>& rows) {
  const auto shift = [&](const CallShape& shape) { return options.unalign * size_of(shape.type); };
  const bool checks_there = !backend.is_on_host() && options.checks > 0;
  size_t bytes = 64, expected_bytes = 0;
  for (const CallShape& shape : shapes) {
    bytes = std::max(bytes, size_bytes(shape, backend.size()) + shift(shape));
    const size_t both = in_elements(shape, backend.size()) + out_elements(shape, backend.size());
    if (checks_there) expected_bytes = std::max(expected_bytes, both * size_of(shape.type));
  }
  const RunMemory memory(backend, bytes, expected_bytes);
  if (!memory.ok()) {
    return no_memory_for("two", bytes, options.library_memory && !options.cuda);
  }
  const MeasureOptions how{.iterations = options.iterations,
                           .warmup = options.warmup,
                           .checks = options.checks,
                           .across = options.across,
                           .limit_from_bytes = last_level_cache_bytes()};
  for (size_t i = 0; i < options.cycles * shapes.size(); ++i) {
    const CallShape& shape = shapes[i % shapes.size()];
    calls.begins(shape);
    const Buffers shifted{.in = static_cast<std::byte*>(memory.buffers().in) + shift(shape),
                          .out = static_cast<std::byte*>(memory.buffers().out) + shift(shape),
                          .expected = memory.buffers().expected};
    auto measured = RONDO_TRY(measure(backend, shape, shifted, how));
    rows.push_back({.shape = shape,
                    .ranks = backend.size(),
                    .measured = measured,
                    .prediction = backend.predict(shape)});
    calls.ends(rows.back());
  }
  return {};
}

std::string text_of(const CallShape& shape, int ranks) {
  return format_size(size_bytes(shape, ranks)) + " of " + std::string(name(shape.type));
}

}  // namespace

std::vector<CallShape> shapes_of(const PerfOptions& options, int ranks) {
  const bool barrier = options.collective == Collective::kBarrier;
  std::vector<DataType> types = options.types;
  std::vector<ReduceOp> ops = options.ops;
  std::vector<int> roots = {options.root};
  std::vector<size_t> sizes = barrier ? std::vector<size_t>{0} : sizes_of(options.sweep);
  if (barrier) types.resize(1);
  if (!reduces(options.collective)) ops = {ReduceOp::kSum};
  if (options.all_roots && internal::is_rooted(options.collective)) {
    roots.clear();
    for (int r = 0; r < ranks; ++r) roots.push_back(r);
  }
  std::vector<CallShape> shapes;
  for (DataType type : types) {
    for (ReduceOp op : ops) {
      if (reduces(options.collective) && !supports(options.collective, type, op)) continue;
      for (int root : roots) {
        for (size_t bytes : sizes) {
          shapes.push_back(shape_of(options.collective, type, op, root, bytes, ranks));
        }
      }
    }
  }
  return shapes;
}

Status check_support(const PerfOptions& options, const Backend& backend,
                     const std::vector<CallShape>& shapes) {
  if (internal::is_rooted(options.collective) && !options.all_roots &&
      (options.root < 0 || options.root >= backend.size())) {
    return {Code::kInvalidArgument, "root " + std::to_string(options.root) +
                                        " is not a rank of a world of " +
                                        std::to_string(backend.size()) + ": choose one with -r"};
  }
  if (shapes.empty()) {
    return {Code::kInvalidArgument, "there is no " + std::string(name(options.ops[0])) + " of " +
                                        std::string(name(options.types[0])) +
                                        (is_scan(options.collective) ? " in a scan" : "") +
                                        ": choose others with -o and -d"};
  }
  for (const CallShape& shape : shapes) RONDO_TRY(backend.supports(shape));
  return {};
}

namespace {
TableStyle style_of(const PerfOptions& options) {
  const char* const no_color = std::getenv("NO_COLOR");
  const bool terminal = options.stdout_is_terminal || isatty(STDOUT_FILENO) == 1;
  return {.wide = options.wide,
          .csv = options.csv,
          .color = terminal && (no_color == nullptr || *no_color == 0)};
}

/// Without what only the backend knows.
Heading heading_of(const PerfProgram& program, const PerfOptions& options, int ranks,
                   const std::string& pinning) {
  const bool library = options.library_memory;
  return {.program = program.name,
          .backend = "",
          .collective = std::string(name_of(options.collective)),
          .memory =
              options.cuda ? (library ? "cuda library" : "cuda") : (library ? "library" : "plain"),
          .pinning = pinning,
          .ranks = ranks,
          .bytes_range = bytes_range(options.collective, options.sweep),
          .iterations = options.iterations,
          .warmup = options.warmup,
          .checks = options.checks,
          .time_of = std::string(kTimeOf[static_cast<size_t>(options.across)]),
          .memory_use = {},
          .links = ""};
}

Heading heading_of(const PerfProgram& program, const PerfOptions& options, const Backend& backend,
                   const std::string& pinning) {
  Heading heading = heading_of(program, options, backend.size(), pinning);
  heading.backend = backend.name();
  heading.memory_use = backend.memory();
  heading.links = backend.links();
  return heading;
}

constexpr const char* kGoesOn = "the run has not come to its end";

/// Logs a failure to write. (An unfinished document that cannot be written is no error yet.)
bool is_ok(const Status& written) {
  if (!written.ok()) spdlog::error("{}", written.to_string());
  return written.ok();
}
}  // namespace

Status no_memory_for(const std::string& how_many, size_t bytes, bool library) {
  return {
      Code::kResourceExhausted,
      std::string("no ") + (library ? "library " : "") + "memory for " + how_many + " buffers of " +
          std::to_string(bytes) + " bytes: choose a smaller maximum with -e" +
          (library ? ", or, if the machine has more, raise RONDO_ARENA_BYTES or ulimit -v" : "")};
}

int fail(Backend& backend, const Status& status) {
  spdlog::error("{}", status.to_string());
  const Code code = status.code();
  const bool others_know = code == Code::kPeerDied || code == Code::kTimeout ||
                           code == Code::kAborted || code == Code::kMismatch;
  if (!others_know) backend.abort(status.message());
  return 1;
}

void write_without_backend(const PerfProgram& program, const PerfOptions& options, int ranks,
                           const std::vector<std::string>& args, const std::string& error) {
  JsonFile json(options.json_file);
  if (!json.open().ok() || (error.empty() && !json.wants_interim())) return;
  const std::string time = now();
  const Heading heading = heading_of(program, options, ranks, "");
  const Status written =
      json.write(to_json(heading, {}, args, time, time, error.empty() ? kGoesOn : error));
  if (!error.empty()) (void)is_ok(written);
}

int run_rank(const PerfProgram& program, const PerfOptions& options, Backend& backend,
             const std::string& pinning, const std::vector<std::string>& args) {
  const bool first = backend.rank() == 0;
  const std::string start_time = now();
  const std::vector<CallShape> shapes = shapes_of(options, backend.size());
  const Heading heading = heading_of(program, options, backend, pinning);
  const TableStyle style = style_of(options);
  JsonFile json(first ? options.json_file : "");
  if (const Status opened = json.open(); !opened.ok()) return fail(backend, opened);
  std::vector<Row> rows;
  const auto write_json = [&](const std::string& error) {
    return json.write(to_json(heading, rows, args, start_time, now(), error));
  };
  ProgressBar bar(first && options.progress, options.cycles * shapes.size());
  const RowCalls calls{.begins =
                           [&](const CallShape& shape) {
                             bar.draw(rows.size(), text_of(shape, backend.size()));
                             if (json.wants_interim()) (void)write_json(kGoesOn);
                           },
                       .ends =
                           [&](const Row& row) {
                             if (!first) return;
                             bar.erase();
                             print_row(stdout, row, style);
                             if (options.stats) print_stats(stdout, row);
                           }};
  Status status = check_support(options, backend, shapes);
  if (status.ok()) {
    if (first) print_heading(stdout, heading, style);
    status = measure_rows(options, backend, shapes, calls, rows);
  }
  bar.erase();
  if (!status.ok()) {
    (void)is_ok(write_json(status.to_string()));
    return fail(backend, status);
  }
  if (first) print_footer(stdout, rows, heading.collective, style);
  const bool printed = !first || is_written(stdout);
  if (!is_ok(write_json("")) || !printed) return 1;
  return wrong_elements(rows) == 0 ? 0 : 1;
}

}  // namespace rondo::bench
