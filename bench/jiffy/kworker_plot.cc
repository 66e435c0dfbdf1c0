// `jiffy kworker --plot FILE`: the table as a picture, drawn by gnuplot.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "kworker.h"
#include "text_table.h"

namespace jiffy {

namespace {

std::string ending_of(const std::string& file) {
  const size_t dot = file.rfind('.');
  return dot == std::string::npos ? "" : file.substr(dot + 1);
}

// In gnuplot's single quotes, a quote is written twice.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}

// One line a cell: what stands below its bar, us from the signal to the consumer, Gb/s and its
// range.
std::string data_block(const KworkerReport& report) {
  std::string out = "$cells << END\n";
  for (const Cell& cell : report.cells) {
    if (cell.runs.empty()) continue;
    const Range gbit = throughput_of(cell);
    std::string name =
        std::string(preemption_name(cell.spec.mode)) + "/" + pool_name(cell.spec.pool);
    if (report.options.ring_sweep) name += " " + format_bytes(double(cell.spec.ring.bytes()));
    out += format("\"%s\" %.3f %.3f %.3f %.3f\n", name.c_str(),
                  latency_of(cell, &CellRun::signal_to_run).mean_ns / 1000, gbit.median, gbit.min,
                  gbit.max);
  }
  return out + "END\n";
}

std::string plot_script(const KworkerReport& report, const std::string& file) {
  const char* terminal =
      ending_of(file) == "svg" ? "svg size 900,700 background 'white'" : "pngcairo size 900,700";
  return std::string("set terminal ") + terminal + "\nset output " + quoted(file) + "\n" +
         data_block(report) +
         "set multiplot layout 2,1\n"
         "unset key\nset style fill solid 0.7\nset boxwidth 0.7\nset grid ytics\n"
         "set lmargin 9\nset rmargin 9\nset xtics rotate by -35\nset xrange [-0.6:*]\n"
         "set title 'From the signal to the consumer running, mean'\n"
         "set ylabel 'us'\nset logscale y\n"
         "plot $cells using 0:2:xtic(1) with boxes\n"
         "unset logscale y\nset yrange [0:*]\n"
         "set title 'Throughput: median and range of the runs'\nset ylabel 'Gb/s'\n"
         "plot $cells using 0:3:xtic(1) with boxes, '' using 0:3:4:5 with yerrorbars lc black ps "
         "0\n"
         "unset multiplot\n";
}

}  // namespace

std::string plot_problem(const std::string& file) {
  const std::string ending = ending_of(file);
  if (ending == "svg" || ending == "png") return "";
  return "--plot: " + file + " ends in neither .svg nor .png, the two kinds that are drawn";
}

bool gnuplot_missing() { return std::system("command -v gnuplot >/dev/null 2>&1") != 0; }

Status write_plot(const KworkerReport& report, const std::string& file) {
  // A logarithmic axis has no place for nothing.
  const auto to_draw = [](const Cell& cell) {
    return !cell.runs.empty() && latency_of(cell, &CellRun::signal_to_run).mean_ns > 0;
  };
  if (std::none_of(report.cells.begin(), report.cells.end(), to_draw)) {
    return Status::error(
        "there is nothing to draw: no cell was measured to its end, or in none was the consumer "
        "woken; give each more time (--seconds)");
  }
  std::signal(SIGPIPE, SIG_IGN);  // a gnuplot that dies at once is told by its status
  std::FILE* gnuplot = popen("gnuplot", "we");
  if (gnuplot == nullptr) return Status::error("cannot start gnuplot");
  const std::string script = plot_script(report, file);
  const bool written = std::fwrite(script.data(), 1, script.size(), gnuplot) == script.size();
  if (pclose(gnuplot) == 0 && written) return Status();
  return Status::error("gnuplot could not draw " + file + "; what it said is above");
}

}  // namespace jiffy
