/* Iteration times, measured and predicted, by uPlot. */

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];

function iterationsChart(place, series, happened) {
  place.replaceChildren();
  if (!series.length) {
    place.textContent = "Not shown: there are no iterations.";
    place.className = "note";
    return null;
  }
  const { get } = coloursNow();
  const numbers = [...new Set(series.flatMap((one) => one.iterations))].sort((a, b) => a - b);
  const first = numbers[0], last = numbers[numbers.length - 1];
  const data = [numbers];
  const described = [{ label: "iteration", value: (_, value) => value ?? "" }];
  const longest = Math.max(...series.flatMap((one) => [one.predicted_s, ...one.seconds.map((s) => s ?? 0)]));
  const [scale, unit] = longest >= 10 ? [1, "s"] : longest >= 1e-2 ? [1e3, "ms"] : [1e6, "µs"];
  series.forEach((one, index) => {
    const colour = get(`series-${index % 8}`);
    const at = new Map(one.iterations.map((number, i) => [number, one.seconds[i]]));
    data.push(numbers.map((number) => at.get(number) == null ? null : at.get(number) * scale));
    described.push({
      label: one.name, stroke: colour, width: 1.5, dash: DASHES[(index >> 3) % DASHES.length], show: index < 12,
      points: { show: true, size: numbers.length > 60 ? 3 : 6, fill: colour },
      value: (_, value) => value == null ? "" : `${value.toFixed(1)} ${unit}`,
    });
  });
  const warmups = numbers.filter((number) => series.every((one) => one.warmup[one.iterations.indexOf(number)] ?? true));
  const predictions = {
    hooks: {
      drawClear: [(chart) => {
        const context = chart.ctx;
        context.save();
        context.beginPath();
        context.rect(chart.bbox.left, chart.bbox.top, chart.bbox.width, chart.bbox.height);
        context.clip();
        context.fillStyle = get("raised");
        for (const number of warmups) {
          const [from, to] = [number - 0.5, number + 0.5].map((at) => chart.valToPos(at, "x", true));
          context.fillRect(from, chart.bbox.top, to - from, chart.bbox.height);
        }
        context.lineWidth = 1;
        context.strokeStyle = get("doubt");
        for (const number of happened) {
          const x = Math.round(chart.valToPos(number - 0.5, "x", true)) + 0.5;
          context.beginPath();
          context.moveTo(x, chart.bbox.top);
          context.lineTo(x, chart.bbox.top + chart.bbox.height);
          context.stroke();
        }
        series.forEach((one, index) => {
          if (!chart.series[index + 1].show) return;
          const y = Math.round(chart.valToPos(one.predicted_s * scale, "y", true)) + 0.5;
          context.strokeStyle = get(`series-${index % 8}`);
          context.globalAlpha = 0.55;
          context.lineWidth = 1;
          context.setLineDash([3, 4]);
          context.beginPath();
          context.moveTo(chart.bbox.left, y);
          context.lineTo(chart.bbox.left + chart.bbox.width, y);
          context.stroke();
        });
        context.restore();
      }],
    },
  };
  const axis = { stroke: get("faint"), grid: { stroke: get("line"), width: 1 }, ticks: { stroke: get("line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const predicted = (low, high) => {
    const shown = series.filter((_, i) => i < 12).map((one) => one.predicted_s * scale);
    const [least, most] = [Math.min(low ?? Infinity, ...shown), Math.max(high ?? 0, ...shown)];
    const room = Math.max((most - least) * 0.08, most * 0.005);
    return [least - room, most + room];
  };
  const chart = new uPlot({
    width: place.clientWidth, height: 300,
    scales: { x: { time: false, range: (_, low, high) => low === high ? [low - 1, high + 1] : [low - 0.3, high + 0.3] }, y: { range: (_, low, high) => predicted(low, high) } },
    axes: [
      { ...axis, label: "iteration", labelSize: 18, labelFont: "12px system-ui, sans-serif", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000] },
      { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => `${tick} ${unit}`) },
    ],
    legend: { live: true },
    cursor: { drag: { x: true, y: false } },
    series: described,
    plugins: [predictions],
  }, data, place);
  chart.root.setAttribute("role", "img");
  chart.root.setAttribute("aria-label", `Iteration times of ${series.length} schedules, iterations ${first} to ${last}; dashed: predicted`);
  return chart;
}
