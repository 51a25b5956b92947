for (const plot of document.querySelectorAll('.plot')) {
  const {x: [from, to], unit, curves} = JSON.parse(plot.dataset.curves);
  const make = kind => {
    const made = plot.appendChild(document.createElement('div'));
    made.className = kind; made.hidden = true;
    return made;
  };
  const rule = make('rule'), tip = make('tip');
  const show = number => Math.abs(number) >= 1e-3 || !number
    ? number.toLocaleString('en', {maximumSignificantDigits: Math.abs(number) >= 1000 ? 8 : 4})
    : number.toExponential(2);
  plot.addEventListener('pointermove', event => {
    const box = plot.getBoundingClientRect();
    const wanted = from + (to - from) * (event.clientX - box.left) / box.width;
    const near = curves.map(([name, kind, points]) => {
      let best = points[0];
      for (const point of points) if (Math.abs(point[0] - wanted) <= Math.abs(best[0] - wanted)) best = point;
      return [name, kind, best];
    });
    const at = near.reduce((a, b) => Math.abs(a[2][0] - wanted) <= Math.abs(b[2][0] - wanted) ? a : b)[2][0];
    const share = (at - from) / (to - from || 1);
    tip.replaceChildren();
    tip.appendChild(document.createElement('div')).textContent = unit === 'update'
      ? 'update ' + show(Math.round(at)) : show(at) + ' ' + unit;
    for (const [name, kind, point] of near) {
      if (Math.abs(point[0] - at) > (to - from) / 12) continue;
      const line = tip.appendChild(document.createElement('div')), mark = document.createElement('i');
      mark.className = 'key ' + kind;
      line.append(mark, name + '  ' + show(point[1]));
    }
    rule.hidden = tip.hidden = false;
    rule.style.left = 100 * share + '%';
    tip.style.left = share < .5 ? 'calc(' + 100 * share + '% + 10px)' : '';
    tip.style.right = share < .5 ? '' : 'calc(' + 100 * (1 - share) + '% + 10px)';
  });
  plot.addEventListener('pointerleave', () => { rule.hidden = tip.hidden = true; });
}
