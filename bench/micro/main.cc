// jiffy_micro: the bars of the runtime's primitives, each beside its reference in the same run.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "micro/report.h"

namespace jiffy::micro {

namespace {

constexpr int kUsage = 2;  // exit code

struct Arguments {
  Settings settings;
  std::string json;
  std::vector<const Row*> rows;
};

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: jiffy_micro [--json FILE] [--repetitions N] [ROW...]\n"
               "  --json FILE      write the rows to FILE too\n"
               "  --repetitions N  of each row, at least 5 (7)\n"
               "Without a ROW all are run. Examples:\n"
               "  jiffy_micro spawn_join yield_fifo_1000\n"
               "  jiffy_micro --json rows.json\n"
               "Rows:\n");
  for (const Row& row : all_rows()) {
    std::fprintf(out, "  %-23s %s, %s\n", row.name, row.what, row.bar.text);
    if (row.reference != nullptr) std::fprintf(out, "  %-23s beside %s\n", "", row.reference);
  }
}

const Row* find_row(const char* name) {
  for (const Row& row : all_rows()) {
    if (std::strcmp(row.name, name) == 0) return &row;
  }
  return nullptr;
}

void complain_of_row(const char* name) {
  std::fprintf(stderr, "jiffy_micro: there is no row '%s'; the rows are:", name);
  for (const Row& row : all_rows()) std::fprintf(stderr, " %s", row.name);
  std::fprintf(stderr, "\n");
}

// Nothing if the program has to end with kUsage; the reason is on stderr.
std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0 && has_value) {
      arguments.json = argv[++i];
    } else if (std::strcmp(argv[i], "--repetitions") == 0 && has_value) {
      arguments.settings.repetitions = std::atoi(argv[++i]);
      if (arguments.settings.repetitions < 5) {
        std::fprintf(stderr, "jiffy_micro: --repetitions %s: at least 5\n", argv[i]);
        return std::nullopt;
      }
    } else if (argv[i][0] == '-') {
      std::fprintf(stderr, "jiffy_micro: '%s': expected --json FILE or --repetitions N\n", argv[i]);
      return std::nullopt;
    } else if (const Row* row = find_row(argv[i]); row != nullptr) {
      arguments.rows.push_back(row);
    } else {
      complain_of_row(argv[i]);
      return std::nullopt;
    }
  }
  if (arguments.rows.empty()) {
    for (const Row& row : all_rows()) arguments.rows.push_back(&row);
  }
  return arguments;
}

Outcome run_row(const Row& row, const Settings& settings) {
  if (const int allowed = allowed_cpus(); allowed < row.host_cpus) {
    Outcome outcome;
    outcome.skipped = "it needs " + std::to_string(row.host_cpus) +
                      " CPUs, and this process may use " + std::to_string(allowed);
    return outcome;
  }
  return row.run(row, settings);
}

int run(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0) {
      print_usage(stdout);
      return EXIT_SUCCESS;
    }
  }
  const std::optional<Arguments> arguments = parse(argc, argv);
  if (!arguments) return kUsage;
#ifndef __OPTIMIZE__
  std::fprintf(stderr, "jiffy_micro: built without optimisation: the numbers mean nothing\n");
#endif
  const Environment environment = read_environment(arguments->settings);
  print_environment(environment);
  print_header();
  std::vector<Measured> measured;
  for (const Row* row : arguments->rows) {
    measured.push_back({row, run_row(*row, arguments->settings)});
    print_row(measured.back());
  }
  if (arguments->json.empty()) return EXIT_SUCCESS;
  return write_json(arguments->json, environment, measured) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

}  // namespace jiffy::micro

int main(int argc, char** argv) { return jiffy::micro::run(argc, argv); }
