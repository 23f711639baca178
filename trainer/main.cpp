// rondo-train: the program. Sets the process up, reads options and data, meets the other ranks,
// trains.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "rondo/rondo.hpp"
#include "trainer/corpus.hpp"
#include "trainer/launch.hpp"
#include "trainer/layers/matmul.hpp"
#include "trainer/mlp.hpp"
#include "trainer/options.hpp"
#include "trainer/train.hpp"

namespace {

using namespace rondo;           // NOLINT: this file is the program
using namespace rondo::trainer;  // NOLINT

Result<Corpus> load_data(const Options& options) {
  constexpr size_t kLeastBytes = MlpShape::kContext + 1;
  if (!options.data.empty()) return load_corpus(options.data, kLeastBytes);
  Result<std::string> folder = find_project_folder();
  RONDO_RETURN_IF_ERROR(folder.status());
  return load_corpus(folder.value(), kLeastBytes);
}

Status run(const Options& options, char** argv) {
  const Result<bool> launch_first = must_launch(options);
  RONDO_RETURN_IF_ERROR(launch_first.status());
  if (launch_first.value()) return launch(options.ranks, argv);

  // The data before the meeting: a rank that cannot read its data says so itself.
  const Result<Corpus> corpus = load_data(options);
  RONDO_RETURN_IF_ERROR(corpus.status());
  set_matmul_threads(options.threads);
  Config config;
  config.pace = options.pace;
  Result<Communicator> communicator = Communicator::create(config);
  RONDO_RETURN_IF_ERROR(communicator.status());
  return train(options, corpus.value(), communicator.value());
}

}  // namespace

int main(int argc, char** argv) {
  prefer_fast_blas(argv);
  spdlog::set_default_logger(spdlog::stderr_color_st("rondo-train"));
  spdlog::set_pattern("rondo-train: %^%v%$");
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const Status status = run(*parsed.options, argv);
  if (status.ok()) return EXIT_SUCCESS;
  spdlog::error("{}", status.to_string());
  return EXIT_FAILURE;
}
