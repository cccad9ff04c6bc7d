"use strict";
// Draws the charts of each section when it scrolls into view, from the numbers that report/interactive.py put in the page.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  // Plotly interprets some tags in texts; names are shown verbatim.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const faint = (colour) => colour + "26";

  function layout(x, y, more) {
    return Object.assign({
      margin: { l: 58, r: 12, t: 12, b: 46 },
      font: { family: "system-ui, sans-serif", size: 12, color: "#1c2430" },
      xaxis: { title: { text: x }, gridcolor: "#e8ebef", zeroline: false },
      yaxis: { title: { text: y }, gridcolor: "#e8ebef", zeroline: false },
      // Below the axis: above the chart, Plotly's toolbar would cover it.
      legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 11 } }, showlegend: false,
      hovermode: "closest", paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    }, more);
  }

  function line(group, x, y, more) {
    return Object.assign({
      x, y, name: plain(group.name), mode: "lines+markers",
      line: { color: group.color, dash: group.dash, width: 2 }, marker: { symbol: group.symbol, size: 6 },
    }, more);
  }

  function band(group, curve) {
    return {
      x: curve.x.concat(curve.x.slice().reverse()), y: curve.high.concat(curve.low.slice().reverse()),
      fill: "toself", fillcolor: faint(group.color), line: { width: 0 }, mode: "lines", hoverinfo: "skip",
    };
  }

  function curves(section, kind) {
    const drawn = section.kinds[kind];
    const traces = [];
    // More bands could not be told apart.
    const isSparse = section.groups.filter((group) => group.shown).length <= 4;
    drawn.curves.forEach((curve, index) => {
      if (!curve || !section.groups[index].shown) return;
      const group = section.groups[index];
      if (isSparse && curve.low.every((value) => value !== null)) traces.push(band(group, curve));
      traces.push(line(group, curve.x, curve.y, {
        hovertemplate: `${plain(group.name)}<br>${drawn.symbol} = %{x}: %{y:.4g}<br>${curve.seeds} seed(s)<extra></extra>`,
      }));
    });
    if (drawn.input) {
      traces.push({ x: drawn.input.x, y: drawn.input.y, mode: "lines+text", line: { color: "#8a94a0", dash: "dot", width: 1.5 },
        text: drawn.input.x.map((_, index) => (index === drawn.input.x.length - 1 ? "noisy input" : "")), textposition: "top left",
        textfont: { color: "#5a6675" }, hovertemplate: `noisy input<br>${drawn.symbol} = %{x}: %{y:.4g}<extra></extra>` });
    }
    const shapes = drawn.seen ? [{ type: "rect", xref: "x", yref: "paper", x0: 0, x1: drawn.seen, y0: 0, y1: 1,
      fillcolor: "#eceff3", line: { width: 0 }, layer: "below" }] : [];
    const annotations = drawn.seen ? [{ x: drawn.seen / 2, y: 1, xref: "x", yref: "paper", text: "ID", showarrow: false,
      yanchor: "top", font: { color: "#5a6675" } }] : [];
    return [traces, layout(`${plain(kind)} noise, ${drawn.symbol}`, `test ${plain(section.metric)}`, { shapes, annotations })];
  }

  function layers(section, kind, level) {
    const drawn = section.kinds[kind];
    const traces = [];
    drawn.layers.forEach((levels, index) => {
      const losses = levels[level];
      if (!losses || !section.groups[index].shown) return;
      const group = section.groups[index];
      traces.push(line(group, losses.map((_, index) => index + 1), losses, {
        hovertemplate: `${plain(group.name)}<br>layer %{x}: %{y:.4g}<extra></extra>`,
      }));
    });
    const all = traces.flatMap((trace) => trace.y).filter((value) => value !== null && value > 0);
    const isWide = all.length > 0 && Math.max(...all) > 20 * Math.min(...all);
    const made = layout("layer", "test loss", {});
    made.xaxis.dtick = all.length && traces[0].x.length > 12 ? undefined : 1;
    if (isWide) made.yaxis.type = "log";
    // f_0, which the first constraint is relative to; more than three lines would hide the losses.
    const constrained = section.groups.filter((group, index) => group.shown && group.isConstrained && drawn.layers[index][level]);
    const references = [...new Set(constrained.map((group) => group.reference))].filter((value) => value !== null && (value > 0 || !isWide));
    if (references.length <= 3) {
      made.shapes = references.map((value) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value,
        line: { color: "#8a94a0", dash: "dot", width: 1 } }));
      made.annotations = references.map((value) => ({ xref: "paper", x: 1, y: isWide ? Math.log10(value) : value,
        text: "f<sub>0</sub>", showarrow: false, xanchor: "right", yanchor: "bottom", font: { color: "#5a6675" } }));
    }
    return [traces, made];
  }

  function ratios(section, kind, level) {
    const drawn = section.kinds[kind];
    const gamma = drawn.gammas[level];
    const traces = [];
    drawn.ratios.forEach((levels, index) => {
      const found = levels.find((one) => one.gamma === gamma);
      if (!found || !section.groups[index].shown) return;
      const group = section.groups[index];
      traces.push(line(group, drawn.grids[found.grid], found.y, { mode: "lines", line: { color: group.color, dash: group.dash, shape: "hvh" },
        hovertemplate: `${plain(group.name)}<br>ratio %{x:.3g}: density %{y:.3g}<extra></extra>` }));
    });
    const made = layout("f<sub>l</sub> / f<sub>l−1</sub> of an example", "density", {});
    made.shapes = [{ type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1, line: { color: "#8a94a0", dash: "dot", width: 1 } }];
    return [traces, made];
  }

  function training(section, index) {
    const run = section.training[index];
    const shown = run.multipliers && run.multipliers.length ? run.multipliers : run.losses || [];
    const isDual = shown === run.multipliers;
    const last = Math.max(1, shown.length - 1);
    // A line through few points, such as the losses after one epoch, would be invisible.
    const isShort = shown.every((one) => one.x.length < 8);
    const traces = shown.map((one, index) => ({
      x: one.x, y: one.y, mode: isShort ? "lines+markers" : "lines", marker: { size: 7 }, name: `layer ${one.layer}`, line: { color: shade(index / last), width: 2 },
      hovertemplate: `layer ${one.layer}, update %{x}: %{y:.4g}<extra></extra>`,
    }));
    const made = layout("update", isDual ? "multiplier λ" : "validation loss", { showlegend: shown.length < 13 });
    made.xaxis.rangemode = "tozero";
    if (isDual) made.yaxis.rangemode = "tozero";
    return [traces, made];
  }

  // From light to dark, so that the order survives printing in grey (five colours of Matplotlib's reversed viridis).
  function shade(share) {
    const steps = [[253, 231, 37], [94, 201, 98], [33, 145, 140], [59, 82, 139], [68, 1, 84]];
    const at = (0.12 + 0.88 * share) * (steps.length - 1);
    const low = Math.min(Math.floor(at), steps.length - 2);
    const mixed = steps[low].map((value, index) => Math.round(value + (at - low) * (steps[low + 1][index] - value)));
    return `rgb(${mixed.join(",")})`;
  }

  function option(select, value, text) {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = text;
    select.append(made);
  }

  // One legend for all charts of a section: a button for each group.
  function legend(element, section, redraw) {
    const buttons = section.groups.map((group) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = group.detail;
      const swatch = document.createElement("i");
      swatch.style.borderTop = `3px ${{ solid: "solid", dot: "dotted" }[group.dash] || "dashed"} ${group.color}`;
      button.append(swatch, `${group.name} · ${group.seeds}${group.infeasible ? " †" : ""}`);
      element.append(button);
      return button;
    });
    const show = (isShown) => {
      section.groups.forEach((group, index) => { group.shown = isShown(group, index); });
      buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(section.groups[index].shown)));
      redraw();
    };
    buttons.forEach((button, index) => {
      button.addEventListener("click", () => show((group, other) => (other === index ? !group.shown : group.shown)));
      button.addEventListener("dblclick", () => {
        const isAlone = section.groups.every((group, other) => group.shown === (other === index));
        show((_, other) => isAlone || other === index);
      });
    });
    show((group) => group.shown);
  }

  function start(element) {
    const section = data[Number(element.dataset.section)];
    const kinds = Object.keys(section.kinds);
    const find = (name) => element.querySelector(`[data-${name}]`);
    const [kindChoice, levelChoice, runChoice] = ["kind", "level", "run"].map(find);
    const draw = (name, [traces, made]) => Plotly.react(find(name), traces, made, config);
    const first = Math.max(0, section.groups.findIndex((group) => group.shown));
    kinds.forEach((kind) => option(kindChoice, kind, kind));
    kindChoice.parentElement.hidden = kinds.length < 2;
    section.training.forEach((run, index) => option(runChoice, index, section.groups[run.group].name));
    runChoice.value = String(Math.max(0, section.training.findIndex((run) => run.group === first)));

    function byLevel() {
      const level = Number(levelChoice.value);
      draw("layers", layers(section, kindChoice.value, level));
      draw("ratios", ratios(section, kindChoice.value, level));
    }
    function byKind() {
      const drawn = section.kinds[kindChoice.value];
      levelChoice.replaceChildren();
      drawn.gammas.forEach((gamma, index) => option(levelChoice, index, `${drawn.symbol} = ${gamma}`));
      const own = drawn.gammas.indexOf(drawn.seen === null ? section.groups[first].gammaTrain : drawn.seen);
      levelChoice.value = String(Math.max(0, own));
      draw("curves", curves(section, kindChoice.value));
      byLevel();
    }
    function redraw() {
      draw("curves", curves(section, kindChoice.value));
      byLevel();
    }
    function byRun() {
      draw("training", training(section, Number(runChoice.value)));
    }
    kindChoice.addEventListener("change", byKind);
    levelChoice.addEventListener("change", byLevel);
    runChoice.addEventListener("change", byRun);
    if (kinds.length) {
      byKind();
      legend(find("legend"), section, redraw);
    } else {
      // Nothing is evaluated yet: only training can be shown.
      levelChoice.parentElement.hidden = true;
      ["curves", "layers", "ratios"].forEach((name) => { find(name).parentElement.hidden = true; });
    }
    byRun();
    element.dataset.drawn = "yes";
  }

  const waiting = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        waiting.unobserve(entry.target);
        start(entry.target);
      }
    }
  }, { rootMargin: "400px" });
  document.querySelectorAll("[data-section]").forEach((element) => waiting.observe(element));

  // The search field filters sections by recipe.
  const filter = document.getElementById("filter");
  if (filter) {
    filter.addEventListener("input", () => {
      const wanted = filter.value.trim().toLowerCase();
      document.querySelectorAll("[data-name]").forEach((element) => {
        element.hidden = !element.dataset.name.toLowerCase().includes(wanted);
      });
    });
  }
})();
